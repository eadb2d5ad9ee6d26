#!/usr/bin/env bash
# Measures on a GPU everything that docs/performance.md reports: depthwise
# convolutions, which decide how models compute them, then trainings and timings.
#
#   benchmarks/run_on_gpu.sh                 everything that is not measured yet
#   benchmarks/run_on_gpu.sh latency scaling these parts
#   SMALL=1 benchmarks/run_on_gpu.sh         tiny sizes, on any machine
#
# A part whose result exists is skipped and training resumes from its checkpoint,
# so after an interruption call it again. PYTHON is the interpreter, RESULTS the
# folder of results, RUNS that of the runs, WORKERS the processes that decode.
# LIMIT stops after so many seconds, with exit status 75, between commands or in
# one. Rows of PyTorch say so where it is not installed; models of timm are
# measured only where it is.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python}
results=${RESULTS:-benchmarks/results/gpu}
runs=${RUNS:-runs}
end=$((SECONDS + ${LIMIT:-86400}))
timm=(swin_base_patch4_window7_224 swin_small_patch4_window7_224 convnext_base)
if [[ -n ${SMALL:-} ]]; then
  how=(--seconds 0.1 --repeats 2)
  size=(--batch 2 --image-size 32) scaled=(--batch 2 --image-size 32)
  models=(rmt_compact) gated=(rmt_compact) large=rmt_compact
  fed=(digits_retention:smoke --config.num_epochs=1) images=(--images 96)
  images+=(--classes 10 --size 32x32) storages=(decode)
  training=smoke runs_of_it=(--seeds 1 --only rmt) recipe=cifar10_95.py:smoke
  # Most of the time goes into compiling programs that run once.
  export XLA_FLAGS="${XLA_FLAGS:-} --xla_backend_optimization_level=0"
else
  how=(--seconds 3 --repeats 5)
  size=(--batch 128) scaled=(--batch 32)
  models=(rmt_t rmt_s rmt_compact retention_compact swat_compact rmt_large
    retention_large swat_large)
  gated=(retention_compact retention_large)
  large=retention_large
  fed=(mini_imagenet_retention --config.num_epochs=3
    --config.optimizer.warmup_epochs=0.5)
  images=(--images 20000 --classes 100) storages=(memory disk decode)
  training=table5 runs_of_it=() # three models, three seeds, 50 epochs
  recipe=cifar10_95.py
fi
trap 'exit 130' INT
failed=()
mkdir -p "$results"
export JAX_COMPILATION_CACHE_DIR=${JAX_COMPILATION_CACHE_DIR:-$runs/compiled}

run() { # a command, within what is left of LIMIT
  local left=$((end - SECONDS)) status=0
  if ((left > 0)); then
    timeout --foreground "$left" "$@" || status=$?
  else
    status=124
  fi
  if ((status == 124)); then
    echo 'out of time: call again' >&2
    exit 75
  fi
  return "$status"
}
# Into RESULTS/NAME.json; a record that lacks a program of ours stays `.part`, and
# is measured again by the next call.
measure() { # NAME OPTION...
  local file=$results/$1.json
  shift
  [[ -e $file ]] || {
    run "$python" benchmarks/speed.py --json "$file.part" "${how[@]}" "$@" &&
      mv "$file.part" "$file"
  } || failed+=("$file")
}

training() {
  run "$python" experiments/run.py "$training" "${runs_of_it[@]}" \
    --out "$runs" || failed+=("$runs/$training")
  run "$python" experiments/report.py "$runs/$training" --out "$results/report" ||
    failed+=("$results/report")
}
cifar10_95() {
  local run=$runs/cifar10_95 file=$results/cifar10_95.json
  [[ -e $file ]] || {
    run "$python" train.py --config=configs/"$recipe" --workdir="$run" &&
      "$python" experiments/collect.py "$run" > "$file.part" &&
      mv "$file.part" "$file"
  } || failed+=("$run")
}
steps() {
  for model in "${models[@]}"; do
    measure "step_$model" --model "$model" --train --inference "${size[@]}" \
      --peers eager compile
  done
  if "$python" -c 'import timm' 2> /dev/null; then
    measure timm --model "$large" "${size[@]}" --peers "${timm[@]}"
  fi
  # The cost of reproducible sums.
  XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_deterministic_ops=true" \
    measure deterministic --model "${gated[@]}" "${size[@]}" --train
}
pipeline() { # the log has images per second and the share of waiting
  local data=$runs/synthetic storage run how_read
  [[ -e $data/synthetic/1.0.0 ]] ||
    run "$python" benchmarks/synthetic_images.py "$data" "${images[@]}"
  for storage in "${storages[@]}"; do
    [[ -e $results/pipeline_$storage.json ]] && continue
    run=$runs/pipeline_$storage how_read=(--config.data.storage="$storage")
    if [[ $storage == decode && -z ${SMALL:-} ]]; then
      how_read+=(--config.data.workers="${WORKERS:-12}")
    fi
    run "$python" train.py --config="${fed[0]}" "${fed[@]:1}" --workdir="$run" \
      --config.data.name=synthetic --config.data.dir="$data" \
      --config.data.train_split=train --config.data.val_split='train[:1]' \
      "${how_read[@]}" &&
      cp "$run/metrics.jsonl" "$results/pipeline_$storage.jsonl" &&
      "$python" experiments/collect.py "$run" > "$run.part" &&
      mv "$run.part" "$results/pipeline_$storage.json" || failed+=("$run")
  done
}
latency() {
  for model in "${models[@]}"; do
    measure "latency_$model" --model "$model" --latency --peers eager
  done
}
scaling() {
  for axis in batch resolution; do
    measure "scaling_$axis" --model "$large" "${scaled[@]}" --inference \
      --scaling "$axis"
  done
}
depthwise() { measure depthwise --depthwise; }
memory() {
  measure memory --model "$large" "${size[@]}" --train \
    --peers remat=elementwise remat=blocks
}

all=(depthwise training cifar10_95 steps pipeline latency scaling memory)
parts=("$@")
(($#)) || parts=("${all[@]}")
for part in "${parts[@]}"; do
  if [[ " ${all[*]} " != *" $part "* ]]; then
    echo "no part '$part': ${all[*]}" >&2
    exit 2
  fi
  echo "== $part"
  "$part"
done
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}" >&2
  exit 1
fi
echo "everything is measured: $results"
