#!/usr/bin/env bash
# Makes the Python environment of the real-trainer test and prints its interpreter:
#
#   SPARKRUN_TRAINERS_PYTHON=$(e2e/trainers/setup.sh) go test ./e2e/trainers/
#
# It lies outside the tree and is kept: a second call with the same pins only prints
# the path. Everything but that path goes to stderr. $PYTHON chooses the base interpreter.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${SPARKRUN_CI_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sparkrun-ci}
venv=$cache/venv
python=${PYTHON:-python3}

say() { echo "trainers/setup: $*" >&2; }

mkdir -p "$cache"
# Two callers at once (a test run and a person) must not build into the same folder.
exec 9>"$cache/venv.lock"
if ! flock -n 9; then
  say "another setup is at work, waiting for it"
  flock 9
fi

# The stamp names all that the environment depends on. It is written last, so an
# interrupted install has none and is made anew.
want=$({ cat "$here/requirements.txt" "$here/constraints.txt"; "$python" -c 'import platform, sys; print(sys.version, platform.machine())'; } | sha256sum | cut -d' ' -f1)
have=$(cat "$venv/sparkrun-stamp" 2>/dev/null || true)

if [ "$have" = "$want" ] && "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  say "reusing $venv"
else
  say "making $venv (torch with its CUDA wheels: about 3 GB to fetch, 6 GB on disk)"
  rm -rf "$venv"
  "$python" -m venv "$venv" >&2
  tries=0
  until "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: --retries 10 \
      --requirement "$here/requirements.txt" --constraint "$here/constraints.txt" >&2; do
    tries=$((tries + 1))
    if [ "$tries" -ge 3 ]; then
      say "pip failed three times; nothing was kept"
      rm -rf "$venv"
      exit 1
    fi
    say "pip failed, trying again in 20 s"
    sleep 20
  done
  "$venv/bin/python" -c 'from trl import SFTTrainer; import peft' >&2
  echo "$want" >"$venv/sparkrun-stamp"
fi
echo "$venv/bin/python"
