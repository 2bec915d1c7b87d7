"""TrainingArguments and its subclasses (SFTConfig and the like), and the Trainer."""

import json
import os
import weakref

from . import record, wrapping

# Names of the row length, in the arguments or as a parameter of an old TRL trainer.
LENGTHS = ("max_length", "max_seq_length")
# What a longer prompt would leave of a shorter row: they shrink in proportion.
PARTS = ("max_prompt_length", "max_completion_length")

# Knob and attribute, for what is only looked at.
LOOKED_AT = (
    ("packing", "packing"),
    ("eval_batch", "per_device_eval_batch_size"),
    ("grad_checkpoint", "gradient_checkpointing"),
    ("optimizer", "optim"),
    ("output_dir", "output_dir"),
    ("resume_from", "resume_from_checkpoint"),
    ("max_steps", "max_steps"),
    ("epochs", "num_train_epochs"),
    ("save_steps", "save_steps"),
    ("learning_rate", "learning_rate"),
    ("num_workers", "dataloader_num_workers"),
)

# Attribute of arguments that were unpickled or halved in another process: which value
# was made from which. It is set only where a value was halved, and travels with a copy.
MARK = "_sparkrun_shim"

# Set once arguments with a batch were changed: a loop around them has its batch from there.
batch_turned = False

# Arguments (by id, they have no hash) whose batch was changed: what is in force, and what
# the script had.
_batches = {}

_resumed = False


def training_args(plan, module):
    cls = getattr(module, "TrainingArguments", None)
    if cls is None:
        return

    def before(call):
        wrapping.ensure()
        clamp(plan, call.args[0])

    wrapping.wrap(cls, "__post_init__", before)


def llama_factory(plan, module):
    def before(call):
        args = call.args[0]
        value = getattr(args, "cutoff_len", None)
        new = plan.size("seq_len", value)
        args.cutoff_len = new
        record.seen("seq_len", "DataArguments.cutoff_len", value, new)

    wrapping.wrap(module.DataArguments, "__post_init__", before)


def trainer(plan, module):
    base = getattr(module, "Trainer", None)
    if base is None:
        return

    def before_init(call):
        clamp_trainer(plan, call, final=True)

    def before_init_of_subclass(call):
        clamp_trainer(plan, call)

    def before_train(call):
        resume(plan, call)

    wrapping.wrap(base, "__init__", before_init)
    wrapping.wrap(base, "train", before_train)

    def watch(cls):
        # A class of the script itself is left alone: dill pickles it by value, and it
        # calls the base class anyway.
        if cls.__module__ != "__main__" and "<locals>" not in cls.__qualname__:
            wrapping.wrap(cls, "__init__", before_init_of_subclass)

    known = list(base.__subclasses__())
    while known:
        cls = known.pop()
        watch(cls)
        known.extend(cls.__subclasses__())

    if "__init_subclass__" in vars(base):
        return

    def __init_subclass__(cls, **kwargs):
        super(base, cls).__init_subclass__(**kwargs)
        with record.guard("watching the class %s" % cls.__name__):
            watch(cls)

    base.__init_subclass__ = classmethod(__init_subclass__)


def clamp_trainer(plan, call, final=False):
    """What a trainer is made with: its arguments, which the script may have changed since
    they were made, and lengths that old TRL takes as parameters."""
    where = type(call.args[0]).__name__
    for name in LENGTHS:
        value = call.get(name) if call.given(name) else None
        if value is None:
            continue
        new = plan.size("seq_len", value)
        record.seen("seq_len", "%s(%s=)" % (where, name), value, new)
        call.set(name, new)
        for part in PARTS:
            scale(plan, call.get(part) if call.given(part) else None, value, new, lambda v, p=part: call.set(p, v))
    packing = call.get("packing") if call.given("packing") else None
    if isinstance(packing, bool):
        new = flag(plan, "packing", packing)
        record.seen("packing", "%s(packing=)" % where, packing, new)
        call.set("packing", new)
    args = call.get("args")
    if args is not None and hasattr(args, "per_device_train_batch_size"):
        clamp(plan, args, final)


def scale(plan, part, before, after, put):
    """Puts a part of a row in proportion to the row that was cut."""
    if isinstance(part, int) and not isinstance(part, bool) and isinstance(before, int) and after < before:
        put(max(1, part * after // before))


def flag(plan, knob, value):
    to = plan.to(knob)
    return value if to is None else to == "true"


def clamp(plan, args, final=False):
    """Turns the knobs of arguments in place, each by itself, and records what is there."""
    name = type(args).__name__
    with record.guard("the marks of %s" % name):
        recall(plan, args)
    steps = [length, batch, evaluation, simple, folder]
    for step in steps:
        with record.guard("%s: %s" % (name, step.__name__)):
            step(plan, args, name, final)
    with record.guard("looking at %s" % name):
        for knob, attribute in LOOKED_AT:
            value = getattr(args, attribute, None)
            if value is not None and not (knob == "max_steps" and value <= 0):
                record.seen(knob, "%s.%s" % (name, attribute), plan.origin(knob, value), value, final)


def change(plan, args, values):
    """Sets all attributes, or none."""
    before = {k: getattr(args, k) for k in values}
    try:
        for k, v in values.items():
            setattr(args, k, v)
            if getattr(args, k) != v:
                raise AttributeError("%s cannot be set" % k)
    except Exception:
        for k, v in before.items():
            try:
                setattr(args, k, v)
            except Exception:
                pass
        raise
    mark(plan, args)


def mark(plan, args):
    made = {k: dict(v) for k, v in plan.made.items() if plan.halvings(k)}
    if made:
        vars(args)[MARK] = {"made": made, "pairs": dict(plan.pairs)}


def recall(plan, args):
    told = vars(args).get(MARK) or {}
    for knob, made in (told.get("made") or {}).items():
        for after, before in made.items():
            plan.made.setdefault(knob, {}).setdefault(after, before)
    for after, before in (told.get("pairs") or {}).items():
        plan.pairs.setdefault(after, before)


def length(plan, args, name, final):
    has = [a for a in LENGTHS if hasattr(args, a)]
    set_ = [a for a in has if isinstance(getattr(args, a), int)]
    limit = plan.number("seq_len", "to")
    if has and not set_ and limit is not None:
        # No limit at all is more than any.
        change(plan, args, {has[0]: limit})
        record.seen("seq_len", "%s.%s" % (name, has[0]), None, limit, final)
        return
    for attribute in set_:
        value = getattr(args, attribute)
        new = plan.size("seq_len", value)
        if new != value:
            change(plan, args, {attribute: new})
            for part in PARTS:
                scale(plan, getattr(args, part, None), value, new, lambda v, p=part: change(plan, args, {p: v}))
        record.seen("seq_len", "%s.%s" % (name, attribute), plan.origin("seq_len", new), new, final)


def batch(plan, args, name, final):
    """Micro-batch and accumulation together, or neither."""
    global batch_turned
    micro = "per_device_train_batch_size"
    if isinstance(getattr(args, "per_gpu_train_batch_size", None), int):
        micro = "per_gpu_train_batch_size"  # of very old scripts: it goes before the other
    accumulation = "gradient_accumulation_steps"
    m, a = getattr(args, micro, None), getattr(args, accumulation, None)
    why = batch_is_fixed(args) if plan.wants("micro_batch", "accumulation") else ""
    old_m, old_a = own_batch(plan, args, m, a)
    new_m, new_a = m, a
    if not why and ((old_m, old_a) == (m, a) or (m, a) not in plan.pairs):
        new_m, new_a = plan.batch(old_m, old_a)
    if (new_m, new_a) != (m, a):
        change(plan, args, {accumulation: new_a, micro: new_m})
        batch_turned = True
    if (new_m, new_a) != (old_m, old_a):
        _batches[id(args)] = (weakref.ref(args), (new_m, new_a), (old_m, old_a))
    record.seen("micro_batch", "%s.%s" % (name, micro), old_m, new_m, final, why)
    record.seen("accumulation", "%s.%s" % (name, accumulation), old_a, new_a, final, why)


def own_batch(plan, args, m, a):
    """Micro-batch and accumulation as the script has them, where m and a are in force. It
    may have set one of them after we had set both."""
    ref, ours, own = _batches.get(id(args), (None, None, None))
    if ref is not None and ref() is args:
        return (own[0] if m == ours[0] else m), (own[1] if a == ours[1] else a)
    return plan.pairs.get((m, a), (m, a))


def batch_is_fixed(args):
    """Why the batch of these arguments is left alone, empty where it is not."""
    if getattr(args, "auto_find_batch_size", False):
        return "auto_find_batch_size makes the batch smaller by itself"
    if getattr(args, "num_generations", None) is not None:
        return "the number of generations has to divide the batch"
    if type(args).__module__.startswith("sentence_transformers."):
        return "the rows of a batch are each other's negatives, so a smaller one is another loss"
    inner = getattr(args, "accelerator_config", None)
    inner = inner if isinstance(inner, dict) else getattr(inner, "__dict__", {})
    if "num_steps" in (inner.get("gradient_accumulation_kwargs") or {}):
        return "accelerator_config sets the accumulation"
    deepspeed = getattr(args, "deepspeed", None)
    if deepspeed:
        numbers = deepspeed_numbers(deepspeed)
        if numbers:
            return "the DeepSpeed configuration has %s as a number" % ", ".join(numbers)
    return ""


def deepspeed_numbers(config):
    if not isinstance(config, dict):
        with open(os.fspath(config), encoding="utf-8") as f:
            config = json.load(f)
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    return [n for n in names if isinstance(config.get(n), int)]


def evaluation(plan, args, name, final):
    for attribute in ("per_device_eval_batch_size", "per_gpu_eval_batch_size"):
        value = getattr(args, attribute, None)
        new = plan.size("eval_batch", value)
        if new != value:
            change(plan, args, {attribute: new})


def simple(plan, args, name, final):
    if plan.to("packing") is not None and isinstance(getattr(args, "packing", None), bool):
        old, new = args.packing, flag(plan, "packing", args.packing)
        if new != old:
            change(plan, args, {"packing": new})
            plan.keep("packing", old, new)
            record.seen("packing", name + ".packing", old, new, final)
    checkpointing(plan, args, name, final)
    workers = getattr(args, "dataloader_num_workers", None)
    new = plan.size("num_workers", workers)
    if new != workers:
        values = {"dataloader_num_workers": new}
        if new == 0:
            # Both are refused where there are no workers.
            values.update({k: v for k, v in (("dataloader_prefetch_factor", None), ("dataloader_persistent_workers", False)) if hasattr(args, k)})
        change(plan, args, values)


def checkpointing(plan, args, name, final):
    """Its newer name, where the library has it, goes before the older one."""
    names = [n for n in ("activation_checkpointing", "gradient_checkpointing") if hasattr(args, n)]
    to = plan.to("grad_checkpoint")
    if to is None or not names:
        return
    old = next((getattr(args, n) for n in names if getattr(args, n) is not None), False)
    new = to == "true"
    if new == old or not isinstance(old, bool):
        return
    values = dict.fromkeys(names, new)
    if new and len(names) == 1 and getattr(args, "gradient_checkpointing_kwargs", "") is None:
        # What older releases do without it loses the gradient where the first layers are
        # frozen (LoRA).
        values["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    change(plan, args, values)
    plan.keep("grad_checkpoint", old, new)
    record.seen("grad_checkpoint", "%s.%s" % (name, names[0]), old, new, final)


def folder(plan, args, name, final):
    old = getattr(args, "output_dir", None)
    if not isinstance(old, (str, os.PathLike)):
        return
    new, clamped = os.fspath(old), plan.clamps.get("output_dir")
    if clamped and clamped.get("to"):
        if not clamped.get("from") or same_path(old, clamped["from"]):
            new = clamped["to"]
    elif plan.suffix and new and not new.rstrip("/").endswith(plan.suffix):
        new = new.rstrip("/") + plan.suffix
    if new != os.fspath(old):
        change(plan, args, {"output_dir": new})
        plan.keep("output_dir", os.fspath(old), new)


def same_path(a, b):
    return os.path.realpath(os.fspath(a)) == os.path.realpath(os.fspath(b))


def resume(plan, call):
    """The checkpoint that a trainer goes on from. Only one trainer of a script is told:
    the one that saves where the checkpoint came from, or the first."""
    global _resumed
    to = plan.to("resume_from")
    args = getattr(call.args[0], "args", None)
    old = call.get("resume_from_checkpoint")
    where = "%s.train(resume_from_checkpoint=)" % type(call.args[0]).__name__
    if to is None or _resumed:
        record.seen("resume_from", where, old, old, True)
        return
    if plan.resume_folder:
        own = getattr(args, "output_dir", None)
        if own is None or not same_path(plan.origin("output_dir", os.fspath(own)), plan.resume_folder):
            record.seen("resume_from", where, old, old, True, "this trainer saves into another folder")
            return
    if not os.path.exists(to):
        record.trouble("the checkpoint %s cannot be seen from the training: it starts as the script says" % to)
        record.seen("resume_from", where, old, old, True, "the checkpoint is not there")
        return
    _resumed = True
    call.set("resume_from_checkpoint", to)
    record.seen("resume_from", where, old, to, True)
