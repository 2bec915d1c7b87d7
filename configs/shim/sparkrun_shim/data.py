"""Rows: the length that a script's own tokenising asks for, and the cache of datasets."""

from . import record, wrapping

METHODS = ("__call__", "encode", "encode_plus", "batch_encode_plus", "apply_chat_template")


def tokenizers(plan, module):
    cls = getattr(module, "PreTrainedTokenizerBase", None)
    if cls is None:
        return
    # A tokenizer may be called for every row, so what was decided once is looked up.
    known, told = {}, set()

    def tell(before, after):
        if (before, after) not in told:
            told.add((before, after))
            record.seen("seq_len", record.TOKENIZER, before, after)

    def before(call):
        kwargs = call.kwargs
        value = kwargs.get("max_length")
        if isinstance(value, int) and not isinstance(value, bool):
            new = known.get(value)
            if new is None:
                new = known[value] = plan.size("seq_len", value)
                known[new] = new
                tell(plan.origin("seq_len", new), new)
            if new != value:
                kwargs["max_length"] = new
        elif value is None and kwargs.get("truncation") not in (None, False, "do_not_truncate"):
            # Cut at the model's own limit, which stands in the tokenizer.
            limit = getattr(call.args[0], "model_max_length", None)
            limit = limit if isinstance(limit, int) and limit < 1 << 30 else None
            new = plan.number("seq_len", "to") if limit is None else plan.size("seq_len", limit)
            if new is not None and new != limit:
                kwargs["max_length"] = new
                tell(limit, new)

    for name in METHODS:
        wrapping.wrap(cls, name, before)


def datasets(plan, module):
    """The cache knows a mapped set by its function, whose constants we do not change: it
    would give back the long rows of the attempt before."""
    if not plan.wants("seq_len"):
        return
    clamp = plan.clamps["seq_len"]
    word = "%s/%s" % (clamp.get("to") or "", clamp.get("halve") or "")

    def before(call):
        arguments = call.get("transform_args")
        call.set("transform_args", dict(arguments, sparkrun_seq_len=word))

    wrapping.wrap(module, "update_fingerprint", before)
