# Sourced by tools/test and tools/demo: makes .venv at the repository root ready, with nothing but a
# Python of 3.11 or newer on the machine and without asking for root.
#
# Contract: after `bootstrap ROOT` returns, $VENV_PYTHON runs with every dependency installed, and
# SETUP_SECONDS says how long that took (0 when nothing was to do). A stamp in .venv holds a hash of
# what the installation depends on; while it agrees, nothing is downloaded and pip is not called.
# Package indexes are pip's own business: PIP_INDEX_URL and PIP_EXTRA_INDEX_URL are left alone.

_say() { printf '%s\n' "$*" >&2; }

# Prints the first interpreter that really runs and is new enough; a shim that only complains is passed over.
_find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3 python3.12 python3.13 python3.14; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            command -v "$candidate"
            return 0
        fi
    done
    _say "No Python 3.11 or newer found (tried ${PYTHON:+\$PYTHON=$PYTHON, }python3.11, python3, python3.12 to python3.14)."
    _say "Install one, or name it: PYTHON=/path/to/python3.11 $0"
    return 1
}

# Prints the hash that the stamp must hold. Python computes it, since no checksum command is everywhere.
_wanted_stamp() {
    "$1" - "$2/pyproject.toml" "$2/constraints.txt" "$2" <<'PY'
import hashlib, pathlib, sys
digest = hashlib.sha256(repr((sys.version, sys.argv[3])).encode())
for name in sys.argv[1:3]:
    digest.update(pathlib.Path(name).read_bytes())
print(digest.hexdigest())
PY
}

_create_venv() {
    local python=$1 venv=$2
    if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        _say "$python has no venv or ensurepip module, so no virtual environment can be made."
        _say "On Debian and Ubuntu they are in the package python3-venv; or name another Python with PYTHON=..."
        return 1
    fi
    "$python" -m venv --clear "$venv"
}

_install() {
    local root=$1 quiet=(-q -q)
    if [ -t 1 ]; then quiet=(-q); fi
    # compat mode: one path in a .pth file. The default puts an import hook into every start of Python.
    if ! "$VENV_PYTHON" -m pip install "${quiet[@]}" --disable-pip-version-check \
        --config-settings editable_mode=compat \
        -c "$root/constraints.txt" -e "$root[train,plot,dev]" >&2; then
        _say "Installing the dependencies failed (the lines above are pip's)."
        _say "A machine without a GPU takes the small build of PyTorch with"
        _say "    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu $0"
        return 1
    fi
}

bootstrap() {
    local root=$1 venv=$1/.venv python stamp wanted started=$SECONDS
    VENV_PYTHON=$venv/bin/python
    SETUP_SECONDS=0
    stamp=$venv/.shardstore-stamp
    if [ -f "$stamp" ] && wanted=$(_wanted_stamp "$VENV_PYTHON" "$root" 2>/dev/null) \
        && [ "$(cat "$stamp")" = "$wanted" ]; then
        _say "set-up: .venv is up to date, nothing to download"
        return 0
    fi
    if ! "$VENV_PYTHON" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        python=$(_find_python) || return 1
        _say "set-up: making .venv with $python"
        _create_venv "$python" "$venv" || return 1
    fi
    _say "set-up: installing dependencies (the first time a download of some hundred megabytes)"
    rm -f "$stamp"
    _install "$root" || return 1
    _wanted_stamp "$VENV_PYTHON" "$root" >"$stamp" || return 1
    SETUP_SECONDS=$((SECONDS - started))
    _say "set-up: download and installation took $SETUP_SECONDS s"
}
