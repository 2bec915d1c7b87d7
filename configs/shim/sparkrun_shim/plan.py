"""What is to be changed, and to which value. Functions from values to values: no library
is touched here."""

import os

# Values that halving has produced, for the processes started from this one: a copy of
# arguments that were halved already is not halved again.
SETTLED = "SPARKRUN_SHIM_SETTLED"


def whole(value):
    """The value as an int if it is a whole number, else None; a bool is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        return int(value) if isinstance(value, str) or value == int(value) else None
    except (TypeError, ValueError, OverflowError):
        return None


def smaller_divisor(n):
    """The largest divisor of n that is smaller than n; 1 for a prime."""
    for p in range(2, int(n**0.5) + 1):
        if n % p == 0:
            return n // p
    return 1


def divisor_within(n, limit):
    """The largest divisor of n that is not over limit, which is at least 1."""
    return next(d for d in range(min(n, limit), 0, -1) if n % d == 0)


class Plan:
    def __init__(self, data):
        self.clamps = {c["knob"]: c for c in data.get("clamps") or []}
        self.suffix = data.get("suffix") or ""
        self.smaller_batch = bool(data.get("smaller_batch"))
        self.resume_folder = data.get("resume_folder") or ""
        # knob -> {value in force: value it was made from}
        self.made = {}
        # (micro-batch, accumulation) in force: the pair it was made from
        self.pairs = {}

    def to(self, knob):
        """The value to go to as text, None where the plan has none."""
        return self.clamps.get(knob, {}).get("to")

    def halvings(self, knob):
        return self.clamps.get(knob, {}).get("halve") or 0

    def number(self, knob, key):
        return whole(self.clamps.get(knob, {}).get(key))

    def wants(self, *knobs):
        return any(k in self.clamps for k in knobs)

    def settled(self, knob, value):
        """Whether halving has produced this value, here or in a parent process."""
        return value in self.made.get(knob, ()) or "%s=%s" % (knob, value) in os.environ.get(SETTLED, "").split(",")

    def keep(self, knob, before, after):
        if before == after:
            return
        self.made.setdefault(knob, {}).setdefault(after, before)
        word = "%s=%s" % (knob, after)
        known = [w for w in os.environ.get(SETTLED, "").split(",") if w]
        if self.halvings(knob) and word not in known:
            os.environ[SETTLED] = ",".join(known + [word])

    def origin(self, knob, value):
        """What the script had where this value is in force, as far as this process knows."""
        try:
            return self.made.get(knob, {}).get(value, value)
        except TypeError:
            return value

    def size(self, knob, value):
        """The value of a size that may only fall: length, rows, workers."""
        n = whole(value)
        if n is None or n <= 0 or knob not in self.clamps:
            return value
        new = n
        limit = self.number(knob, "to")
        if limit is not None:
            new = min(n, limit)
        elif not self.settled(knob, n):
            floor = max(self.number(knob, "floor") or 0, 1)
            for _ in range(self.halvings(knob)):
                if new // 2 >= floor:
                    new //= 2
        self.keep(knob, n, new)
        return new if new != n else value

    def batch(self, micro, accumulation):
        """Micro-batch and accumulation: both change so that their product stays, or
        neither does."""
        m, a = whole(micro), whole(accumulation)
        if m is None or a is None or m < 1 or a < 1:
            return micro, accumulation
        new_m, new_a = m, a
        m_to, a_to = self.number("micro_batch", "to"), self.number("accumulation", "to")
        m_from, a_from = self.number("micro_batch", "from"), self.number("accumulation", "from")
        if m_to and a_to and (m, a) == (m_from, a_from) and m_to <= m:
            # What the plan was made for. It may ask for more than the same product: tokens
            # kept where the length was cut.
            new_m, new_a = m_to, a_to
        elif a_to and "micro_batch" not in self.clamps:
            if a == a_from or (a_from is None and a < a_to):
                new_a = a_to
        elif m_to and m > m_to:
            new_m = divisor_within(m, m_to)
            new_a = a * (m // new_m)
        elif self.halvings("micro_batch") and not self.settled("micro_batch", m):
            floor = max(self.number("micro_batch", "floor") or 0, 1)
            for _ in range(self.halvings("micro_batch")):
                if new_m > 1 and smaller_divisor(new_m) >= floor:
                    new_m = smaller_divisor(new_m)
            new_a = a * (m // new_m)
        self.keep("micro_batch", m, new_m)
        if (new_m, new_a) != (m, a):
            self.pairs.setdefault((new_m, new_a), (m, a))
        return (new_m if new_m != m else micro), (new_a if new_a != a else accumulation)
