// The page of `export-web --check`: does this browser compute right?

import { archive } from "./archive.js";
import { examined, offered, text, verdict } from "./checks.js";

const at = (id) => document.getElementById(id);
const state = { version: at("version").textContent, agent: navigator.userAgent };

function show() {
  const { found, error, what } = state;
  at("report").value = text(state);
  at("status").textContent = verdict(found, error);
  at("status").className = error || found?.wrong.length ? "bad" : found && !found.failed.length ? "good" : "";
  at("adapter").textContent = what?.adapter ?? "–";
  const times = found?.networks.map(({ name, call, gpu }) => `${name}: ${(gpu ?? call).toFixed(2)} ms`);
  at("time").textContent = times?.join(", ") || "–";
}

function progress(done, total, name) {
  at("progress").value = done / total;
  at("status").textContent = `${done} of ${total}: ${name}`;
}

async function main() {
  try {
    state.what = await offered();
    show();
    const cases = await archive("./cases.bin", () => {});
    state.found = await examined(cases, progress);
  } catch (error) {
    state.error = error.message;
  }
  at("progress").value = 1;
  show();
  at("copy").disabled = false;
}

at("copy").addEventListener("click", async () => {
  at("report").select(); // to be copied by hand where the page may not
  const done = await navigator.clipboard?.writeText(at("report").value).then(() => true, () => false);
  at("copied").textContent = done ? "Copied" : "Copy what is selected";
});
main();
