import { Terminal } from "./xterm.mjs";
import { FitAddon } from "./addon-fit.mjs";

const $ = (id) => document.getElementById(id);
const say = (text) => { $("status").textContent = text; };
const token = location.hash.slice(1);
history.replaceState(null, "", location.pathname); // keep it out of the history

const socket = new WebSocket(location.origin.replace(/^http/, "ws") + "/shell/ws");
socket.binaryType = "arraybuffer";
const tell = (facts) => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(facts)); };

let terminal;
let ended = false;

function end(text) {
  if (ended) return;
  ended = true;
  $("login").hidden = true;
  say(text);
  if (terminal) terminal.options.disableStdin = true;
}

function start() {
  $("login").hidden = true;
  terminal = new Terminal({ cursorBlink: true, scrollback: 10000, theme: { background: "#16181d" } });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open($("screen"));
  const encoder = new TextEncoder();
  const send = (data) => { if (socket.readyState === WebSocket.OPEN) for (let at = 0; at < data.length; at += 16384) socket.send(data.subarray(at, at + 16384)); };
  terminal.onData((text) => send(encoder.encode(text)));
  terminal.onBinary((text) => send(Uint8Array.from(text, (one) => one.charCodeAt(0))));
  terminal.onResize(({ cols, rows }) => tell({ columns: cols, rows }));
  new ResizeObserver(() => fit.fit()).observe($("screen"));
  fit.fit();
  tell({ columns: terminal.cols, rows: terminal.rows });
  terminal.focus();
  say("");
}

socket.onopen = () => tell({ token });
socket.onmessage = ({ data }) => {
  if (typeof data !== "string") { terminal.write(new Uint8Array(data)); return; }
  const facts = JSON.parse(data);
  if (facts.machine) { $("where").textContent = facts.machine; document.title = "Quorate: " + facts.machine; }
  if (facts.error) say(facts.error);
  if (facts.passphrase) {
    $("login").hidden = false;
    $("passphrase").value = "";
    $("passphrase").focus();
    if (!facts.error) say("For the operator only");
  }
  if (facts.open) start();
  if (facts.ended) end(facts.ended);
};
socket.onclose = () => end("The connection has ended.");
$("login").onsubmit = (event) => {
  event.preventDefault();
  say("Checking…");
  tell({ passphrase: $("passphrase").value });
};
