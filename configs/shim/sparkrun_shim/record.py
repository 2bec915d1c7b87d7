"""What this process has seen and changed, written for sparkrun as soon as it changes:
one small file for each process, replaced atomically. A disk that is full, cannot be
written or does not answer costs the record and nothing else: only a thread of its own
touches it, and nobody waits long for that."""

import _thread
import atexit
import contextlib
import enum
import json
import os
import re
import sys
import threading
import time
import zlib

LIBRARIES = (
    "torch", "transformers", "trl", "unsloth", "accelerate", "peft", "datasets", "bitsandbytes",
    "deepspeed", "lightning", "pytorch_lightning", "llamafactory", "sentence_transformers",
)
TOKENIZER = "tokenizer(max_length=)"  # where a tokenizer takes the length
MOST_SEEN = 400
MOST_VALUES = 40  # of one knob in one place
MOST_TROUBLE = 50
LONGEST = 2000  # characters of one text
FRAMES = 12

# Seconds. A process may end without a word (os._exit, a signal), so whoever tells something
# waits a moment until it is written; a disk that keeps somebody waiting for as long as MOMENT
# is not waited for again. At the end of the process there is one more wait.
MOMENT = 0.25
WHILE_TRAINING = 1.0  # all moments of a process together
AT_THE_END = 2.0  # exception and exit together

folder = None
_lock = threading.RLock()
_news = threading.Condition(_lock)
_record = None
_told = set()
_count = {}  # (knob, where): how many values of it were told
_child_of = 0  # the process this one was forked from

# Changes of the record so far, and how many of them the disk has, or was asked to take.
_changes = 0
_written = 0
_writing = False  # whether the thread is there, or must not be
_stuck = False  # whether the disk has kept somebody waiting for a whole MOMENT, and does still
_patience = WHILE_TRAINING
_last_patience = AT_THE_END


def start(where):
    """Begins the record of this process and listens for the exception that ends it."""
    global folder
    if folder is not None:
        return
    folder = where
    os.register_at_fork(before=_before_fork, after_in_child=_forked)
    _listen()
    atexit.register(_at_exit)


def _before_fork():
    """A process with threads is warned about forking: ours has ended when this returns,
    unless the disk is slow or others go on telling."""
    with contextlib.suppress(Exception), _lock:
        if _writing and not _stuck:
            _news.wait(MOMENT)


def _forked():
    """A child begins its own record, of what the parent has not told already, and has none of
    the parent's threads. One of those may have held the lock."""
    global _lock, _news, _record, _child_of, _changes, _written, _writing, _patience, _last_patience
    _child_of = _child_of or os.getppid()
    _count.clear()
    _lock = threading.RLock()
    _news = threading.Condition(_lock)
    _record, _changes, _written, _last_patience = None, 0, 0, AT_THE_END
    _patience = 0 if _stuck else WHILE_TRAINING
    # A thread that waits for a frozen file system cannot be ended, nor can its process, and
    # the parent may wait for that: the child of one that is stuck tells nothing.
    _writing = _stuck


def _current():
    global _record
    if _record is None:
        _record = {
            "pid": os.getpid(),
            "start": _start_time(),
            "python": "%d.%d.%d" % sys.version_info[:3],
            "rank": os.environ.get("RANK", ""),
            "libraries": {},
            "seen": [],
            "exceptions": [],
            "trouble": [],
        }
    return _record


def _start_time():
    try:
        with open("/proc/self/stat") as f:
            return int(f.read().rpartition(")")[2].split()[19])
    except Exception:
        return 0


def _changed():
    """Has the record written. The caller holds the lock, and has told all it knows."""
    global _changes, _writing
    _changes += 1
    if not _writing:
        _writing = True
        try:
            # Not one of threading: a script that counts its threads does not find it, and
            # Python does not wait for it at the end.
            _thread.start_new_thread(_writer, ())
        except Exception:
            # The machine has no thread left, or Python is ending (3.12.0 and 3.12.1 start none
            # from then on).
            _writing = False


def _writer():
    """Writes the record until it is as it should be, then ends. What changes while one is
    written is in the next one, so no more than one waits, whatever the disk does."""
    global _written, _writing, _stuck
    mine = _lock
    while True:
        with mine:
            change = _changes
            try:
                rec = _copy()
            except BaseException:
                rec = None
        if rec is not None:
            _write(rec)
        with mine:
            _written, _writing, _stuck = change, change != _changes, False
            _news.notify_all()
            if not _writing:
                return


def _copy():
    rec = dict(_current(), argv=_argv(), libraries=_versions())
    for kind in ("seen", "exceptions", "trouble"):
        rec[kind] = list(rec[kind])
    return rec


def _wait(seconds):
    """Waits until the disk has what was told so far. False if that takes too long. The clock
    may be the script's own (a frozen one), so the waits are counted: one may end with an
    older record written, the next has ours."""
    mine = _changes
    for _ in range(2):
        if _written >= mine or not _writing:
            return True
        if not _news.wait(seconds / 2):
            return False
    return True


def _pause():
    """The moment after something was told."""
    global _patience, _stuck
    if not _writing or _patience <= 0:
        return
    began = time.monotonic()
    if _wait(MOMENT):
        _patience -= abs(time.monotonic() - began)
    else:
        _patience, _stuck = 0, True


def _last_pause():
    """The wait of a process that is about to end."""
    global _last_patience
    with _lock:
        if not _writing or _last_patience <= 0 or (_child_of and _stuck):
            return
        began = time.monotonic()
        if _wait(_last_patience):
            _last_patience -= abs(time.monotonic() - began)
        else:
            _last_patience = 0


def _write(rec):
    """Replaces the record file. Never raises."""
    try:
        os.makedirs(folder, exist_ok=True)
        name = os.path.join(folder, _name(rec))
        temporary = "%s.%d.%d.tmp" % (name, rec["pid"], threading.get_ident())
        try:
            # No file object: a process that is forked meanwhile would flush its copy of it.
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                # In a container the writer is often another user than the reader.
                os.fchmod(fd, 0o644)
                left = json.dumps(rec).encode("utf-8", "replace")
                while left:
                    left = left[os.write(fd, left) :]
            finally:
                os.close(fd)
            os.replace(temporary, name + ".json")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except BaseException:
        pass


def _name(rec):
    """The file's name without its ending: the process, but for a child that does nothing but
    tokenise. There may be thousands in a run, new ones for every epoch, so those that
    tell the same share one file."""
    if rec["exceptions"] or any(s["where"] != TOKENIZER for s in rec["seen"]) or not _parent():
        return "%d-%d" % (rec["pid"], rec["start"])
    same = json.dumps([rec["seen"], rec["trouble"]], sort_keys=True)
    return "%d-0-%08x" % (_parent(), zlib.crc32(same.encode("utf-8", "replace")))


def _parent():
    if _child_of:
        return _child_of
    process = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    parent = process() if process is not None else None
    return parent.pid if parent is not None else 0


def _versions():
    found = {}
    for name in LIBRARIES:
        module = sys.modules.get(name)
        if module is not None:
            # Their own tables, not getattr: asking a lazy module for a name may import things.
            own = vars(module)
            version = own.get("__version__") or (own.get("_objects") or {}).get("__version__")
            found[name] = str(version or "")
    return found


def seen(knob, where, before, after, final=False, why=""):
    """A library took a knob: before is the script's value, after the one in force."""
    entry = (knob, where, text(before), text(after), bool(final), text(why))
    with _lock:
        place = (knob, where, entry[4])
        if entry in _told or _count.get(place, 0) >= MOST_VALUES or len(_current()["seen"]) >= MOST_SEEN:
            return
        _told.add(entry)
        _count[place] = _count.get(place, 0) + 1
        _current()["seen"].append(dict(zip(("knob", "where", "before", "after", "final", "why"), entry)))
        _changed()
        _pause()


def trouble(message):
    """Something went wrong inside the shim; the training goes on as it was."""
    message = text(message)
    with _lock:
        if message in _current()["trouble"] or len(_current()["trouble"]) >= MOST_TROUBLE:
            return
        _current()["trouble"].append(message)
        _changed()
        _pause()


@contextlib.contextmanager
def guard(doing):
    """Turns an exception of ours into trouble."""
    try:
        yield
    except Exception as error:
        with contextlib.suppress(Exception):
            trouble("%s: %s: %s" % (doing, type(error).__name__, error))


def text(value):
    """A value as the record has it: true and false, none as empty, secrets taken out."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return redact(str(value))[:LONGEST]
    except Exception:
        return "?"


_SECRET = re.compile(
    r"(?:hf_|ghp_|gho_|ghs_|ghr_|github_pat_|glpat-|sk-|xox[abpr]-|nvapi-|AKIA|ASIA|AIza)[A-Za-z0-9_-]{12,}"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
_NAMED = re.compile(
    r"(?i)([\w-]*(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|credential)[\w-]*[\"']?\s*[=:]\s*[\"']?)([^\s\"',;&}]{4,})"
)
_SECRET_FLAG = re.compile(r"(?i)^-{1,2}[\w.-]*(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|credential)[\w.-]*$")
HIDDEN = "[redacted]"


def redact(s):
    return _NAMED.sub(lambda m: m.group(1) + HIDDEN, _SECRET.sub(HIDDEN, s))


def _argv():
    words, hide = [], False
    for word in list(getattr(sys, "orig_argv", None) or getattr(sys, "argv", None) or [])[:200]:
        words.append(HIDDEN if hide and not word.startswith("-") else redact(word)[:LONGEST])
        hide = bool(_SECRET_FLAG.match(word))
    return words


# The exception that ends the process. Python keeps the last uncaught one in sys.last_value
# before it calls the hook, so one that a script's own hook swallows is found at exit.


def _listen():
    previous = sys.excepthook

    def excepthook(kind, value, tb):
        with contextlib.suppress(Exception):
            _exception(kind, value, tb)
            # The hook of the script may end the process at once.
            _last_pause()
        return previous(kind, value, tb)

    sys.excepthook = excepthook
    previous_thread = threading.excepthook

    def thread_excepthook(args):
        with contextlib.suppress(Exception):
            if args.exc_type is not SystemExit:
                name = args.thread.name if args.thread is not None else "?"
                _exception(args.exc_type, args.exc_value, args.exc_traceback, name)
                with _lock:
                    _pause()
        return previous_thread(args)

    threading.excepthook = thread_excepthook


def _at_exit():
    with contextlib.suppress(Exception):
        value = getattr(sys, "last_value", None)
        # At a prompt an exception ends a command, not the process.
        if value is not None and not hasattr(sys, "ps1"):
            _exception(type(value), value, getattr(sys, "last_traceback", None))
    with contextlib.suppress(Exception):
        _last_pause()


def _exception(kind, value, tb, thread=""):
    name, module = getattr(kind, "__qualname__", str(kind)), getattr(kind, "__module__", "")
    told = {
        "type": name if module in ("builtins", "__main__", "") else "%s.%s" % (module, name),
        "message": text(value),
        "frames": _frames(tb),
        "memory": memory(),
        "time": _now(),
        "thread": thread,
    }
    with _lock:
        if ("exception", id(value)) in _told or len(_current()["exceptions"]) >= 8:
            return
        _told.add(("exception", id(value)))
        _current()["exceptions"].append(told)
        _changed()


def _now():
    t = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(t)) + ".%03dZ" % (t % 1 * 1000)


def _frames(tb):
    frames = []
    while tb is not None:
        code = tb.tb_frame.f_code
        frames.append("%s:%d:%s" % (code.co_filename, tb.tb_lineno, code.co_name))
        del frames[:-FRAMES]
        tb = tb.tb_next
    return [redact(f)[:LONGEST] for f in frames]


def memory():
    """Bytes by name, at this moment; what cannot be told is left out."""
    out = {}
    with contextlib.suppress(Exception):
        with open("/proc/meminfo") as f:
            for line in f:
                if line.startswith("MemAvailable:"):
                    out["mem_available"] = int(line.split()[1]) << 10
    torch = sys.modules.get("torch")
    cuda = vars(torch).get("cuda") if torch is not None else None
    with contextlib.suppress(Exception):
        if cuda is None or not cuda.is_initialized():
            return out
        stats = cuda.memory_stats()
        for ours, theirs in (
            ("allocated", "allocated_bytes.all.current"),
            ("max_allocated", "allocated_bytes.all.peak"),
            ("reserved", "reserved_bytes.all.current"),
            ("max_reserved", "reserved_bytes.all.peak"),
            ("num_ooms", "num_ooms"),
            ("num_alloc_retries", "num_alloc_retries"),
        ):
            if theirs in stats:
                out[ours] = int(stats[theirs])
        free, total = cuda.mem_get_info()
        out["device_free"], out["device_total"] = int(free), int(total)
    return out
