#!/usr/bin/env bash
# Makes the Python environments of the real-trainer tests and prints the interpreter of
# the first one:
#
#   SPARKRUN_TRAINERS_PYTHON=$(e2e/trainers/setup.sh) go test -timeout 30m ./e2e/trainers/
#
# They lie outside the tree and are kept: a second call with the same pins only prints
# the path. Everything but that path goes to stderr. $PYTHON chooses the base interpreter.
#
# The first (venv) has torch, transformers and TRL. Each list in envs/ makes one more,
# venv-NAME beside it, for a trainer that wants other versions: it holds only what the
# list names and takes the rest, torch above all, from the first.
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

machine=$("$python" -c 'import platform, sys; print(sys.version, platform.machine())')

# stamp FILE... names all that an environment depends on. It is written last, so an
# interrupted install has none and is made anew.
stamp() { { cat "$@"; echo "$machine"; } | sha256sum | cut -d' ' -f1; }

# install VENV ARGUMENT... runs pip, three times where the network fails.
install() {
  local into=$1 tries=0
  shift
  until "$into/bin/python" -m pip install --quiet --disable-pip-version-check --retries 10 "$@" >&2; do
    tries=$((tries + 1))
    if [ "$tries" -ge 3 ]; then
      say "pip failed three times; nothing was kept"
      rm -rf "$into"
      exit 1
    fi
    say "pip failed, trying again in 20 s"
    sleep 20
  done
}

want=$(stamp "$here/requirements.txt" "$here/constraints.txt")
if [ "$(cat "$venv/sparkrun-stamp" 2>/dev/null || true)" = "$want" ] && "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  say "reusing $venv"
else
  say "making $venv (torch with its CUDA wheels: about 3 GB to fetch, 6 GB on disk)"
  rm -rf "$venv"
  "$python" -m venv "$venv" >&2
  install "$venv" --only-binary :all: --requirement "$here/requirements.txt" --constraint "$here/constraints.txt"
  "$venv/bin/python" -c 'from trl import SFTTrainer; import peft' >&2
  echo "$want" >"$venv/sparkrun-stamp"
fi
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

for list in "$here"/envs/*.txt; do
  name=$(basename "$list" .txt)
  more=$cache/venv-$name
  want=$(stamp "$list" "$here/requirements.txt" "$here/constraints.txt")
  if [ "$(cat "$more/sparkrun-stamp" 2>/dev/null || true)" = "$want" ]; then
    say "reusing $more"
    continue
  fi
  say "making $more"
  rm -rf "$more"
  "$python" -m venv "$more" >&2
  # Behind its own packages in the search path, so that these win.
  echo "$packages" >"$("$more/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz-first.pth"
  # The list is complete: what pip would add is in the first environment.
  install "$more" --no-deps --no-compile --requirement "$list"
  echo "$want" >"$more/sparkrun-stamp"
done
echo "$venv/bin/python"
