// The page: a picture is shrunk to the network's size, shown as it is, and enlarged by the network beside it.
import { load } from "./landscape/q8ta.js";

const at = (id) => document.getElementById(id);
const [stage, before, after, split, status, video] = ["stage", "before", "after", "split", "status", "video"].map(at);
const networks = new Map();
let newest = 0;
let stream = null;

function say(text, bad = false) {
  status.textContent = text;
  status.classList.toggle("bad", bad);
}

function loaded({ stage: step, done, total }) {
  // Downloading is half of the bar, compiling the other.
  at("progress").value = (step === "compile" ? 0.5 : 0) + (0.5 * done) / total;
  say(step === "compile" ? `Compiling shader ${done} of ${total}` : `Loading ${(done / 1000).toFixed(0)} kB`);
}

/** What is shown as equal has been compared. */
async function compared(opening) {
  const net = await opening, equal = await net.verify();
  if (equal === false) throw new Error(`${net.adapter} computes other bytes than the reference`);
  at("bytes").textContent = equal ? "equal to Python's" : "not compared";
  return net;
}

function network(portrait) {
  const name = portrait ? "portrait" : "landscape";
  if (!networks.has(name)) {
    at("progress").classList.remove("done");
    const opening = compared(load(`./${name}/`, { onprogress: loaded, verify: false }));
    const done = () => at("progress").classList.add("done");
    opening.then(done, done);
    opening.catch(() => networks.delete(name)); // the next picture tries again
    networks.set(name, opening);
  }
  return networks.get(name);
}

/** The middle of a source in the shape that the network takes, at its size. */
function shrunk(source, width, height, [w, h]) {
  const scale = Math.min(width / w, height / h);
  const cut = [scale * w, scale * h];
  const options = { resizeWidth: w, resizeHeight: h, resizeQuality: "high" };
  return createImageBitmap(source, (width - cut[0]) / 2, (height - cut[1]) / 2, ...cut, options);
}

async function show(source, width, height) {
  const turn = ++newest;
  const net = await network(height > width);
  const [, , h, w] = net.inputs[0].shape;
  const small = await shrunk(source, width, height, [w, h]);
  if (turn !== newest) return; // another picture came meanwhile
  if (!stream) say("Enlarging"); // where WebGPU runs in software this takes seconds
  const started = performance.now();
  try {
    await net.draw(small, after);
  } catch (error) {
    if (error.code !== "lost") throw error;
    await net.reopen();
    await net.draw(small, after);
  }
  const ms = performance.now() - started;
  before.width = w;
  before.height = h;
  before.getContext("2d").drawImage(small, 0, 0);
  small.close();
  stage.style.aspectRatio = `${w} / ${h}`;
  stage.style.setProperty("--shape", w / h);
  stage.classList.remove("empty");
  at("time").textContent = `${ms.toFixed(1)} ms`;
  at("size").textContent = `${w} × ${h} → ${3 * w} × ${3 * h}`;
  at("adapter").textContent = net.adapter;
  at("model").textContent = `${(net.bytes / 1000).toFixed(0)} kB, int8`;
  say(stream ? "Camera" : "Move the slider to compare");
}

/** Shows, or says in a sentence why not. */
async function tried(work) {
  try {
    await work();
  } catch (error) {
    say(error.message, true);
  }
}

async function open(blob, name) {
  stop();
  let picture;
  try {
    picture = await createImageBitmap(blob, { imageOrientation: "from-image" });
  } catch {
    throw new Error(`${name} is no picture that this browser can read`);
  }
  await show(picture, picture.width, picture.height);
  picture.close();
}

const example = () =>
  tried(async () => {
    const response = await fetch("./photo.png");
    if (!response.ok) throw new Error("there is no example photograph: choose one of yours");
    await open(await response.blob(), "the example");
  });

function stop() {
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = video.srcObject = null;
  at("camera").setAttribute("aria-pressed", "false");
}

async function start() {
  const size = { width: { ideal: 960 }, height: { ideal: 720 }, facingMode: "environment" };
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: size });
  } catch (error) {
    const why = { NotAllowedError: "it is not allowed here", NotFoundError: "there is none" }[error.name];
    throw new Error(`No picture from the camera: ${why ?? error.message}`);
  }
  at("camera").setAttribute("aria-pressed", "true");
  video.srcObject = stream;
  await video.play();
  for (const mine = stream; stream === mine; ) {
    await show(video, video.videoWidth, video.videoHeight);
    await new Promise(requestAnimationFrame);
  }
}

at("camera").addEventListener("click", () => {
  if (stream) stop();
  else tried(start).then(() => status.classList.contains("bad") && stop());
});
at("example").addEventListener("click", example);
at("file").addEventListener("change", ({ target }) => {
  const [file] = target.files;
  target.value = ""; // the same file may be chosen again
  if (file) tried(() => open(file, file.name));
});
split.addEventListener("input", () => {
  stage.style.setProperty("--split", `${split.value}%`);
});
addEventListener("dragover", (event) => {
  event.preventDefault();
  stage.classList.add("over");
});
addEventListener("dragleave", (event) => event.relatedTarget ?? stage.classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  stage.classList.remove("over");
  const [file] = event.dataTransfer.files;
  if (file) tried(() => open(file, file.name));
  else say("That is no file: drop a picture", true);
});
addEventListener("paste", ({ clipboardData }) => {
  const [file] = clipboardData.files;
  if (file) tried(() => open(file, file.name || "what was pasted"));
});

if (!navigator.mediaDevices) at("camera").disabled = true;
example();
