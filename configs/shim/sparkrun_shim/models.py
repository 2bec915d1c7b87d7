"""Loading of models: transformers' and unsloth's from_pretrained, and what peft does to
a model that was to be loaded in 4 bit."""

import sys

from . import record, wrapping


def no_4bit(plan):
    return plan.to("load_in_4bit") == "false"


def is_4bit(config):
    """Whether a quantization_config asks for 4-bit loading by bitsandbytes."""
    if isinstance(config, dict):
        return bool(config.get("load_in_4bit"))
    return bool(getattr(config, "load_in_4bit", False))


def dtype_of(plan):
    """The dtype of the plan as torch has it, None where there is none."""
    torch, name = sys.modules.get("torch"), plan.to("dtype")
    return getattr(torch, name, None) if torch is not None and name else None


def name_of(dtype):
    return None if dtype is None else str(dtype).replace("torch.", "")


def newer_dtype_name():
    """transformers renamed torch_dtype to dtype in 4.56."""
    version = str(getattr(sys.modules.get("transformers"), "__version__", "0.0")).split(".")
    try:
        return (int(version[0]), int(version[1])) >= (4, 56)
    except (ValueError, IndexError):
        return False


def transformers(plan, module):
    cls = getattr(module, "PreTrainedModel", None)
    if cls is None:
        return

    def before(call):
        wrapping.ensure()
        owner, kwargs = call.args[0].__name__, call.kwargs
        where = owner + ".from_pretrained"
        model = call.get("pretrained_model_name_or_path")
        if model is not None:
            record.seen("model", where, model, model)
        four = bool(kwargs.get("load_in_4bit")) or is_4bit(kwargs.get("quantization_config"))
        if four and no_4bit(plan):
            if is_4bit(kwargs.get("quantization_config")):
                call.set("quantization_config", None)
            for name in [k for k in kwargs if k == "load_in_4bit" or k.startswith("bnb_4bit_")]:
                del kwargs[name]
        record.seen("load_in_4bit", where, four, four and not no_4bit(plan))
        packed = getattr(kwargs.get("config"), "quantization_config", None)
        if no_4bit(plan) and packed is not None and is_4bit(packed):
            record.trouble("%s: the weights of %s are 4-bit on disk, which no setting changes" % (where, model))
        key = next((k for k in ("dtype", "torch_dtype") if kwargs.get(k) is not None), None)
        old, new = kwargs.get(key) if key else None, dtype_of(plan)
        if new is not None:
            call.set(key or ("dtype" if newer_dtype_name() else "torch_dtype"), new)
        record.seen("dtype", where, name_of(old), name_of(new if new is not None else old))

    wrapping.wrap(cls, "from_pretrained", before)


def unsloth(plan, module):
    for name in ("FastLanguageModel", "FastModel", "FastVisionModel", "FastTextModel"):
        owner = getattr(module, name, None)
        if owner is not None:
            unsloth_class(plan, owner, name)


def unsloth_class(plan, owner, name):
    def before_load(call):
        wrapping.ensure()
        where = name + ".from_pretrained"
        model = call.get("model_name")
        record.seen("model", where, model, model)
        length = call.get("max_seq_length")
        new = plan.size("seq_len", length)
        if new != length:
            call.set("max_seq_length", new)
        record.seen("seq_len", where + "(max_seq_length=)", length, new)
        four = bool(call.get("load_in_4bit"))
        if four and no_4bit(plan):
            call.set("load_in_4bit", False)
            if is_4bit(call.kwargs.get("quantization_config")):
                call.set("quantization_config", None)
        record.seen("load_in_4bit", where, four, four and not no_4bit(plan))
        old, dtype = call.get("dtype"), dtype_of(plan)
        if dtype is not None and call.takes("dtype"):
            call.set("dtype", dtype)
        record.seen("dtype", where, name_of(old), name_of(dtype if dtype is not None else old))

    def before_peft(call):
        old = call.get("use_gradient_checkpointing")
        new = old
        if plan.to("grad_checkpoint") == "true" and old in (False, None, "none"):
            new = "unsloth"
            call.set("use_gradient_checkpointing", new)
        record.seen("grad_checkpoint", name + ".get_peft_model", bool(old), bool(new))

    wrapping.wrap(owner, "from_pretrained", before_load)
    wrapping.wrap(owner, "get_peft_model", before_peft)


def peft(plan, module):
    """Casts no whole model to float32 that was meant to be in 4 bit: the preparation does
    so with every weight that is not quantised."""
    if not no_4bit(plan):
        return

    def instead(original, call):
        model = call.get("model")
        done = False
        with record.guard("prepare_model_for_kbit_training"):
            quantised = any(getattr(model, n, False) for n in ("is_loaded_in_4bit", "is_loaded_in_8bit", "quantization_method", "hqq_quantized"))
            if not quantised:
                freeze(model, call)
                done = True
        return model if done else original(*call.args, **call.kwargs)

    wrapping.wrap(module, "prepare_model_for_kbit_training", instead=instead)


def freeze(model, call):
    """What the preparation does besides: frozen weights, checkpointing with inputs that
    carry a gradient."""
    for parameter in model.parameters():
        parameter.requires_grad = False
    if not call.get("use_gradient_checkpointing", True):
        return
    how = call.get("gradient_checkpointing_kwargs") or {}
    if how.get("use_reentrant", True) and hasattr(model, "enable_input_require_grads"):
        model.enable_input_require_grads()
    if how:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    else:
        model.gradient_checkpointing_enable()
