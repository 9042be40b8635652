#!/bin/sh
# Build the compiled kernels and install them: install.sh BIN STAMP. BIN is the folder of a virtual environment's programs.
# STAMP is a file that is created unless the build fails, so that make tries again.
#
# If cargo is missing or the build fails, DelayMQ works without them, and one line says so. With CI=true, a failed build is
# an error, but a failed download of the crates is not: the file `not-fetched` then excuses the tests that need them.
# BUILD_FOLDER (build/kernels) receives all files of the build.
set -u
bin=$1
stamp=$2
here=$(cd "$(dirname "$0")" && pwd)
folder=${BUILD_FOLDER:-build/kernels}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
log=$folder/build.log
rm -f "$folder/not-fetched"

build() {
    rm -rf "$folder/wheel" &&
        "$bin/pip" install --disable-pip-version-check -q --require-hashes -r "$here/../../requirements/kernels.txt" &&
        CARGO_TARGET_DIR=$folder/target "$bin/maturin" build --release --locked --quiet \
            --manifest-path "$here/Cargo.toml" --interpreter "$bin/python" --out "$folder/wheel" &&
        "$bin/pip" install --disable-pip-version-check -q --no-index --no-deps --force-reinstall "$folder"/wheel/*.whl &&
        env -u DELAYMQ_KERNELS "$bin/python" -c 'import sys; from delaymq import kernels; sys.exit(not kernels.IS_COMPILED)'
}

if ! command -v cargo > /dev/null; then
    echo "Compiled kernels: not installed, because cargo is missing; DelayMQ works without them (docs/kernels.md)"
    touch "$stamp"
elif ! cargo fetch --locked --quiet --manifest-path "$here/Cargo.toml" > "$log" 2>&1; then
    "$bin/pip" uninstall --disable-pip-version-check -q -y delaymq-kernels > /dev/null 2>&1
    echo "Compiled kernels: not installed, because their crates cannot be downloaded ($log); DelayMQ works without them"
    touch "$folder/not-fetched"
    if [ "${CI:-}" = true ]; then
        touch "$stamp" # each further attempt could take minutes
    fi
elif build > "$log" 2>&1; then
    echo "Compiled kernels: installed"
    touch "$stamp"
else
    # Kernels of an earlier build would not have the results of the current Python code.
    "$bin/pip" uninstall --disable-pip-version-check -q -y delaymq-kernels > /dev/null 2>&1
    reason=$(grep -m 1 -iE '^ *(error|.* error:)' "$log" || tail -n 1 "$log")
    echo "Compiled kernels: not installed, because the build failed ($reason; $log); DelayMQ works without them"
    if [ "${CI:-}" = true ]; then
        cat "$log"
        exit 1
    fi
fi
