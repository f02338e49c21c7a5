// GPU times by timestamp queries.

import { BUFFER, MAP_READ, dispatched } from "./gpu.js";

const MOST = 2048; // passes whose timestamps one query set holds

/** Medians of GPU milliseconds, of a whole run and of every dispatch; `waits` awaits work of the device. */
export async function timed(device, { program, steps }, repeats, waits) {
  const runs = [], each = steps.map(() => []);
  for (let i = -1; i < repeats; i++) {
    const whole = await stamped(device, [steps], waits);
    if (i >= 0) runs.push(whole[0]);
  }
  for (let i = 0; i < Math.min(repeats, 5); i++) {
    for (let first = 0; first < steps.length; first += MOST) {
      const part = await stamped(device, steps.slice(first, first + MOST).map((step) => [step]), waits);
      part.forEach((ms, k) => each[first + k].push(ms));
    }
  }
  const dispatches = program.dispatches.map(({ kernel, value }, i) => ({ kernel, value, ms: median(each[i]) }));
  return { ms: median(runs), runs, dispatches };
}

/** Milliseconds of compute passes. */
async function stamped(device, passes, waits) {
  const count = 2 * passes.length, usage = BUFFER;
  const querySet = device.createQuerySet({ type: "timestamp", count });
  const resolved = device.createBuffer({ size: 8 * count, usage: usage.QUERY_RESOLVE | usage.COPY_SRC });
  const staging = device.createBuffer({ size: 8 * count, usage: usage.MAP_READ | usage.COPY_DST });
  try {
    const encoder = device.createCommandEncoder();
    passes.forEach((steps, i) => {
      const timestampWrites = { querySet, beginningOfPassWriteIndex: 2 * i, endOfPassWriteIndex: 2 * i + 1 };
      dispatched(encoder.beginComputePass({ timestampWrites }), steps);
    });
    encoder.resolveQuerySet(querySet, 0, count, resolved, 0);
    encoder.copyBufferToBuffer(resolved, 0, staging, 0, 8 * count);
    device.queue.submit([encoder.finish()]);
    await waits(staging.mapAsync(MAP_READ));
    const ticks = new BigUint64Array(staging.getMappedRange());
    return passes.map((_, i) => Number(ticks[2 * i + 1] - ticks[2 * i]) / 1e6);
  } finally {
    querySet.destroy();
    resolved.destroy();
    staging.destroy();
  }
}

export function median(values) {
  const sorted = Float64Array.from(values).sort(), middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
