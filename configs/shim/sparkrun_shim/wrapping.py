"""Puts functions around a library's own, on its class, so that the class stays the same
object and the function looks the same to inspect, pickle and source readers."""

import functools
import inspect
import sys

from . import record

MARK = "__sparkrun_shim__"

# Every place that was wrapped, so that it can be looked at again: unsloth puts functions
# of its own in the place of others, whenever it is imported.
_places = []


def wrap(owner, name, before=None, instead=None, remember=True):
    """Wraps owner.name, if it is there and not wrapped yet.

    before(call) may change the arguments; instead(original, call) runs in place of the
    function. What goes wrong in before leaves the arguments as they were."""
    raw = vars(owner).get(name)
    kind = type(raw) if isinstance(raw, (staticmethod, classmethod)) else None
    function = raw.__func__ if kind else raw
    if not callable(function):
        return False
    if remember and (owner, name) not in [p[:2] for p in _places]:
        _places.append((owner, name, before, instead))
    if _wrapped(function):
        return True
    label = "%s.%s" % (getattr(owner, "__name__", owner), name)

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        call = Call(function, args, kwargs)
        if before is not None:
            try:
                before(call)
            except Exception as error:
                record.trouble("%s: %s: %s" % (label, type(error).__name__, error))
                call = Call(function, args, kwargs)
        if instead is not None:
            return instead(function, call)
        return function(*call.args, **call.kwargs)

    setattr(wrapper, MARK, True)
    setattr(owner, name, kind(wrapper) if kind else wrapper)
    return True


def _wrapped(function):
    while function is not None:
        if vars(function).get(MARK) if hasattr(function, "__dict__") else False:
            return True
        function = getattr(function, "__wrapped__", None)
    return False


def ensure():
    """Wraps again what somebody has replaced since."""
    for owner, name, before, instead in list(_places):
        with record.guard("wrapping %s again" % name):
            wrap(owner, name, before, instead, remember=False)


def again(plan, module):
    """A library that patches others was imported."""
    ensure()


@functools.lru_cache(maxsize=None)
def _parameters(function):
    return list(inspect.signature(function).parameters.values())


class Call:
    """The arguments of one call, by name, however they were passed."""

    def __init__(self, function, args, kwargs):
        self.function, self.args, self.kwargs = function, args, dict(kwargs)

    def _index(self, name):
        for i, p in enumerate(_parameters(self.function)):
            if p.kind == p.VAR_POSITIONAL:
                return None
            if p.name == name:
                return i if i < len(self.args) else None
        return None

    def takes(self, name):
        return any(p.name == name or p.kind == p.VAR_KEYWORD for p in _parameters(self.function))

    def given(self, name):
        return name in self.kwargs or self._index(name) is not None

    def get(self, name, default=None):
        """The argument as passed, else the function's own default, else default."""
        if name in self.kwargs:
            return self.kwargs[name]
        i = self._index(name)
        if i is not None:
            return self.args[i]
        for p in _parameters(self.function):
            if p.name == name and p.default is not p.empty:
                return p.default
        return default

    def set(self, name, value):
        i = None if name in self.kwargs else self._index(name)
        if i is None:
            self.kwargs[name] = value
        else:
            self.args = self.args[:i] + (value,) + self.args[i + 1 :]


def caller():
    """The top-level package of the code that called the wrapped function, from within
    before: the first frame that is not ours."""
    frame = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__") or "").split(".")[0]
        if package != "sparkrun_shim":
            return package
        frame = frame.f_back
    return ""
