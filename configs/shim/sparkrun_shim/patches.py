"""Brings the plan, the record and the patches together once the first library is there."""

import importlib
import json

from . import hook, record
from .plan import Plan

plan = None


def apply(plan_path, patch, name, module):
    global plan
    if plan is None:
        record.start(hook.record_folder(plan_path))
        try:
            with open(plan_path, encoding="utf-8") as f:
                plan = Plan(json.load(f))
        except Exception as error:
            plan = Plan({})
            record.trouble("the plan %s cannot be read, nothing is changed: %r" % (plan_path, error))
    with record.guard("patching %s" % name):
        submodule, function = patch.split(".")
        getattr(importlib.import_module("." + submodule, __package__), function)(plan, module)
