// Adapters, and the one device that networks share.

import { Q8taError } from "./errors.js";

/** WebGPU's baseline: what every device has. */
const BASELINE = {
  maxStorageBuffersPerShaderStage: 8,
  maxStorageBufferBindingSize: 2 ** 27,
  maxBufferSize: 2 ** 28,
  maxComputeInvocationsPerWorkgroup: 256,
  maxComputeWorkgroupSizeX: 256,
  maxComputeWorkgroupStorageSize: 16384,
  maxComputeWorkgroupsPerDimension: 65535,
};

export function describe(info) {
  const parts = [info?.description || info?.device, info?.vendor, info?.architecture].filter(Boolean);
  return [...new Set(parts)].join(", ") || "this adapter";
}

export function require(needed, limits, who) {
  for (const [name, value] of Object.entries(needed)) {
    if (limits[name] < value) {
      throw new Q8taError("limit", `the network needs ${name} ${value}, ${who} offers ${limits[name]}`);
    }
  }
}

/** The device made here, for all networks. */
const shared = new WeakMap();

export function shares(gpu, adapter, needed) {
  const before = shared.get(gpu) ?? Promise.resolve(null);
  const next = before
    .catch(() => null)
    .then((device) => {
      const enough = device && Object.entries(needed).every(([name, value]) => device.limits[name] >= value);
      return enough ? device : request(gpu, adapter, needed);
    });
  shared.set(gpu, next);
  return next;
}

async function request(gpu, adapter, needed) {
  const requiredLimits = {};
  for (const name of Object.keys(BASELINE)) requiredLimits[name] = Math.max(BASELINE[name], needed[name]);
  for (const name of ["maxBufferSize", "maxStorageBufferBindingSize"]) requiredLimits[name] = adapter.limits[name];
  const requiredFeatures = ["timestamp-query"].filter((feature) => adapter.features.has(feature));
  const device = await adapter.requestDevice({ requiredFeatures, requiredLimits });
  device.lost.then(() => shared.delete(gpu));
  return device;
}

export async function best(gpu) {
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (adapter) return adapter;
  throw new Q8taError("adapter", "WebGPU is there, but offers no adapter: the GPU or its driver is blocked or missing");
}

export function webgpu(given) {
  const gpu = given ?? globalThis.navigator?.gpu;
  if (gpu) return gpu;
  throw globalThis.isSecureContext === false
    ? new Q8taError("webgpu", "WebGPU needs a secure page: open this one by https, or from localhost")
    : new Q8taError("webgpu", "this browser has no WebGPU: take a current Chrome, Edge, Firefox or Safari");
}
