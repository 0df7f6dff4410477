#!/usr/bin/env bash
# Everything that needs a GPU, in the folder that `./run test-gpu` fills: programs, libraries, golden vectors and
# Python tests, built elsewhere. It needs LibTorch 2.11 with CUDA (a python3 that imports torch) and no network.
# First all that checks, side by side; then, alone, all that measures. Logs and steps.md go to $OUT; the exit
# status is 1 when a step failed.
#   OUT=folder STEPS="tests golden sanitizer python bench rec lm generate" SHARDS=8 bash run.sh
set -u
cd "$(dirname "$0")"
OUT=$(realpath -m "${OUT:-out}")
STEPS=${STEPS:-tests golden sanitizer python bench rec lm generate}
SHARDS=${SHARDS:-8}
mkdir -p "$OUT/status"

torch_libraries() {
  python3 - <<'PYTHON'
import glob, importlib.util, os
root = os.path.dirname(importlib.util.find_spec("torch").origin)
print(":".join([root + "/lib", *glob.glob(os.path.join(os.path.dirname(root), "nvidia", "*", "lib"))]))
PYTHON
}

# step NAME COMMAND...: the log keeps what it printed, status/NAME a line of the table.
step() {
  local name=$1 began=$SECONDS status=ok; shift
  "$@" >"$OUT/$name.log" 2>&1 || status=FAILED
  echo "| $name | $status | $((SECONDS - began)) s | $(result_line "$OUT/$name.log") |" >"$OUT/status/$name"
}

# The lines of a log that say how it ended.
result_line() {
  grep -hE '^\[  (PASSED|FAILED)  \] [0-9]+ test|files checked|ERROR SUMMARY|RACECHECK SUMMARY|(passed|failed).* in ' \
    "$1" | sort | uniq -c | sed -E 's/^ *1 //; s/^ *([0-9]+) /\1 x /' | tr '\n|' '; ' | tr -d '=' | sed 's/; *$//'
}

# The tests, cut into shards that run side by side: most of their time goes to references on the CPU.
tests() {
  local i failed=0 pids=()
  for ((i = 0; i < SHARDS; ++i)); do
    GTEST_TOTAL_SHARDS=$SHARDS GTEST_SHARD_INDEX=$i ./test_cuda --gtest_brief=1 >"$OUT/tests-$i.log" 2>&1 &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || failed=1; done
  cat "$OUT"/tests-*.log; rm "$OUT"/tests-*.log
  return $failed
}

# Small cases that reach every kernel.
sanitizer() {
  local tool=$1 program
  local small='CudaStep.EmptyCalls:CudaStep.StridedInputs*:CudaRefine.Strides*:CudaRefine.RowsOnOdd*:CudaShortConv.EmptyCalls:CudaShortConv.OddAddresses*:CudaShortConv.ASequence*:CudaReports.OffsetsOnTheDevice*:CudaReports.PackedSequences*'
  program=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$program" --tool "$tool" --error-exitcode 9 ./test_cuda --gtest_filter="$small"
}

python_tests() {
  PYTHONPATH=$PWD/python PRISM_LIBRARY=$PWD/libprism.so \
    python3 -m pytest -q -p no:cacheprovider tests/python/test_operators.py -k cuda
}

wanted() { [[ " $STEPS " == *" $1 "* ]]; }

LD_LIBRARY_PATH=$PWD:$(torch_libraries):${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH
rm -f "$OUT"/status/*
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1 >"$OUT/machine.txt"
wanted tests && step tests tests &
wanted golden && { step golden ./prism_golden golden --device cuda; step golden-wide ./prism_golden golden --device cuda --widths 32; } &
wanted sanitizer && step memcheck sanitizer memcheck &
wanted sanitizer && step racecheck sanitizer racecheck &
wanted python && step python python_tests &
wait
wanted bench && step bench ./bench_gpu --json "$OUT/bench.json"
wanted rec && step rec ./bench_rec ml-100k.inter --device cuda
wanted lm && step lm ./bench_lm --device cuda --models prism:2,prism:1,gated_delta_net,softmax_attention
wanted generate && step generate ./bench_generate --device cuda
grep -hE '^(drift|[0-9]+x[0-9]+ |varlen)' "$OUT/tests.log" 2>/dev/null | sort >"$OUT/errors.txt"
for name in tests golden golden-wide memcheck racecheck python bench rec lm generate; do cat "$OUT/status/$name" 2>/dev/null; done | tee "$OUT/steps.md"
! grep -q FAILED "$OUT/steps.md"
