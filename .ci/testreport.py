#!/usr/bin/env python3
"""Reads the output of `go test -json` and judges it.

    go test -json ./... | .ci/testreport.py NAME [--counts FILE]

Prints what failed in full, each skip with its reason, go test's own line for each
package, and at last NAME's counts. The status is 1 if a test or a build failed, if no
test ran at all, or, with SPARKRUN_NO_SKIP=1, if a test was skipped for a reason that
.ci/allowed-skips does not list.
"""

import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def allowed_skips(path):
    """The expressions of a file with one a line that hold on this machine; # starts a comment."""
    allowed = []
    with open(path) as f:
        for line in f:
            line = line.split("#", 1)[0].strip()
            condition = re.match(r"\[no (/\S+)\]\s*(.+)", line)
            if condition:
                line = "" if os.path.exists(condition.group(1)) else condition.group(2)
            if line:
                allowed.append(re.compile(line))
    return allowed


def reason(output):
    """The words of t.Skip in a skipped test's output."""
    words = [line.strip() for line in output if not line.startswith(("=== ", "--- "))]
    words = [re.sub(r"^[\w./-]+\.go:\d+: ", "", line) for line in words if not line.startswith("--- SKIP")]
    return " ".join(word for word in words if word) or "no reason given"


class Report:
    def __init__(self):
        self.output = {}  # (package, test) -> lines
        self.passed = self.failed = 0
        self.failures = []  # (package, test)
        self.skips = []  # (package, test, reason)
        self.packages = []  # go test's last line for each
        self.noise = []  # lines that are no JSON, and those of a build that failed

    def line(self, text):
        try:
            event = json.loads(text)
        except ValueError:
            self.noise.append(text.rstrip("\n"))
            return
        action, package, test = event["Action"], event.get("Package", ""), event.get("Test", "")
        key = (package, test)
        if action == "build-output":
            self.noise.append(event["Output"].rstrip("\n"))
        elif action == "output":
            self.output.setdefault(key, []).append(event["Output"])
            if not test and re.match(r"(ok|FAIL|---|\?)\s*\t", event["Output"]):
                self.packages.append(event["Output"].rstrip("\n"))
        elif action == "pass" and test:
            self.passed += 1
            self.output.pop(key, None)
        elif action == "fail":
            if test:
                self.failed += 1
            self.failures.append(key)
        elif action == "skip" and test:
            self.skips.append((package, test, reason(self.output.get(key, []))))

    def print(self, allowed, forbid_skips):
        """Prints everything; returns whether it is good."""
        for line in self.noise:
            print(line)
        # A package that failed without a failed test died: a panic, a time-out, a build.
        with_test = {package for package, test in self.failures if test}
        for package, test in self.failures:
            if test or package not in with_test:
                print("=== FAILED %s %s" % (package, test))
                print("".join(self.output.get((package, test), [])), end="")
        good = not self.failures
        for package, test, why in self.skips:
            known = any(a.search("%s %s: %s" % (package, test, why)) for a in allowed)
            forbidden = forbid_skips and not known
            good = good and not forbidden
            print("%s %s %s: %s" % ("skipped, which is an error here:" if forbidden else "skipped:", package, test, why))
        for line in self.packages:
            print(line)
        if self.passed + self.failed == 0:
            print("no test ran")
            good = False
        return good


def main(args):
    if not args or len(args) not in (1, 3) or (len(args) == 3 and args[1] != "--counts"):
        sys.exit(__doc__)
    report = Report()
    for text in sys.stdin:
        report.line(text)
    good = report.print(allowed_skips(os.path.join(HERE, "allowed-skips")), os.environ.get("SPARKRUN_NO_SKIP") == "1")
    # A failed package, or a skip that counts as failure, is a failure in the sum too.
    failed = max(report.failed, len(report.failures), 0 if good else 1)
    print("%s: %d passed, %d failed, %d skipped" % (args[0], report.passed, failed, len(report.skips)))
    if len(args) == 3:
        with open(args[2], "a") as f:
            f.write("%d %d\n" % (report.passed, failed))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
