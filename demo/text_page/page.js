// The page: what is written appears token by token, and how many there are in a second.
import { load } from "./step/q8ta.js";
import { Tokenizer, Writer } from "./writer.js";

const at = (id) => document.getElementById(id);
const [form, text, status, stop] = ["form", "text", "status", "stop"].map(at);
let opening = null;
let stopped = false;

function say(words, bad = false) {
  status.textContent = words;
  status.classList.toggle("bad", bad);
}

function loaded({ stage: step, done, total }) {
  // Downloading is half of the bar, compiling the other.
  at("progress").value = (step === "compile" ? 0.5 : 0) + (0.5 * done) / total;
  say(step === "compile" ? `Compiling shader ${done} of ${total}` : `Loading ${(done / 1000).toFixed(0)} kB`);
}

async function open() {
  at("progress").classList.remove("done");
  try {
    const [net, response] = await Promise.all([
      load("./step/", { onprogress: loaded, verify: false }),
      fetch("./tokens.json"),
    ]);
    if (!response.ok) throw new Error("there is no tokens.json beside this page");
    const { merges, context } = await response.json();
    const equal = await net.verify(); // what is shown as equal has been compared
    if (equal === false) throw new Error(`${net.adapter} computes other bytes than the reference`);
    at("bytes").textContent = equal ? "equal to Python's" : "not compared";
    at("adapter").textContent = net.adapter;
    at("model").textContent = `${(net.bytes / 1000).toFixed(0)} kB, int8`;
    say("Ready");
    return { net, tokenizer: new Tokenizer(merges), writer: new Writer(net, context) };
  } finally {
    at("progress").classList.add("done");
  }
}

function network() {
  opening ??= open();
  opening.catch(() => (opening = null)); // the next text tries again
  return opening;
}

async function write() {
  const { net, tokenizer, writer } = await network();
  const [count, temperature, seed] = ["count", "temperature", "seed"].map((id) => at(id).valueAsNumber);
  const prompt = at("prompt").value;
  text.textContent = prompt;
  say("Reading");
  let written = 0, started = 0;
  try {
    for await (const token of writer.write(tokenizer.encode(prompt), temperature, seed)) {
      const now = performance.now();
      started ||= now;
      text.append(tokenizer.strings[token]);
      text.scrollTop = text.scrollHeight;
      at("written").textContent = ++written;
      if (written > 1) at("rate").textContent = `${((1000 * (written - 1)) / (now - started)).toFixed(1)} tokens a second`;
      say("Writing");
      if (stopped || written >= count) break;
    }
  } catch (error) {
    if (error.code !== "lost") throw error;
    await net.reopen();
    throw new Error("The device was lost, and is open again: write once more", { cause: error });
  }
  say(stopped ? "Stopped" : "Done");
}

/** Writes, or says in a sentence why not. */
async function tried(work) {
  stopped = false;
  [at("write").disabled, stop.disabled] = [true, false];
  try {
    await work();
  } catch (error) {
    say(error.message, true);
  } finally {
    [at("write").disabled, stop.disabled] = [false, true];
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  tried(write);
});
stop.addEventListener("click", () => (stopped = true));
tried(network);
