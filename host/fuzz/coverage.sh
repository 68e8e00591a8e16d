#!/bin/sh
# What cargo runs as rustc for our own crates: with the coverage that libFuzzer follows. Dependencies are not
# instrumented, so they are those that are built already.
rustc=$1
shift
case " $* " in
*" --crate-name build_script_"*) exec "$rustc" "$@" ;;
esac
exec "$rustc" "$@" -Cpasses=sancov-module -Ccodegen-units=1 \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
