"""Turns knobs that are written in a training script's own code, where the libraries
take them, and records what they were given. See docs/shim.md.

    hook      notices the import of a library it knows; all that other processes pay for
    plan      what is to be changed: reads plan.json, decides on values (no library here)
    record    what was seen and changed, and the uncaught exception, for sparkrun
    wrapping  puts a function around a library's own without changing what it looks like
    arguments TrainingArguments and its subclasses; the Trainer
    models    from_pretrained of transformers and unsloth, peft's preparation
    data      tokenizers, the cache of datasets
    loops     plain loops with accelerate, Lightning
"""
