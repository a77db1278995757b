// The page of the house: asks, shows what happens while it is answered, and keeps the conversation (only here).
"use strict";

const KEY = "enlace-clave";
const $ = (id) => document.getElementById(id);
let messages = []; // what was said: {role, content}
let asking = null; // AbortController of the question being answered

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function say(text) {
  $("status").textContent = text;
}

function toTheEnd() {
  window.scrollTo(0, document.body.scrollHeight);
}

function addTurn(role, text) {
  const words = element("p", { className: "text", textContent: text });
  const who = element("h2", { className: "who", textContent: role === "user" ? "Tú" : "ENLACE" });
  const turn = element("li", { className: `turn ${role}` }, who, words);
  $("turns").append(turn);
  $("welcome").hidden = true;
  toTheEnd();
  return { turn, words };
}

function addNote(turn, text, kind = "") {
  turn.insertBefore(element("p", { className: `note ${kind}`, textContent: text }), turn.querySelector(".text"));
}

function addAside(turn, title, items) {
  turn.append(
    element("section", { className: "aside" }, element("h3", { textContent: title }), element("ol", {}, ...items)),
  );
}

function showSources(turn, sources) {
  const items = sources.map((source, i) => {
    const link = element("a", {
      href: source.url, textContent: source.title, target: "_blank", rel: "noopener noreferrer nofollow",
    });
    return element("li", {}, `[${i + 1}] `, link, element("span", { className: "host", textContent: ` · ${source.host}` }));
  });
  addAside(turn, "Fuentes", items);
}

function showMemories(turn, memories) {
  const items = memories.map((memory) => {
    const button = element("button", { type: "button", textContent: "Olvidar" });
    button.setAttribute("aria-label", `Olvidar: ${memory.text}`);
    const item = element("li", { className: "memory" }, element("span", { textContent: memory.text }), button);
    button.addEventListener("click", async () => {
      if (await forget([memory.id])) {
        item.replaceChildren(element("em", { textContent: "Olvidado." }));
        say("Olvidado.");
      }
    });
    return item;
  });
  addAside(turn, "Recuerdos usados", items);
}

// ── Talking to the server ────────────────────────────────────────────────────────────────────────────────────────

async function send(method, path, body, signal) {
  for (;;) {
    const token = localStorage.getItem(KEY);
    const headers = { "Content-Type": "application/json" };
    if (token) headers.Authorization = `Bearer ${token}`;
    const response = await fetch(path, { method, headers, signal, body: JSON.stringify(body) });
    if (response.status !== 401) return response;
    localStorage.removeItem(KEY);
    if (!(await askForToken())) return response;
  }
}

function askForToken() {
  $("token").value = "";
  $("key").returnValue = "";
  $("key").showModal();
  return new Promise((done) => {
    $("key").addEventListener("close", () => {
      const given = $("key").returnValue === "yes" && $("token").value.trim();
      if (given) localStorage.setItem(KEY, given);
      done(Boolean(given));
    }, { once: true });
  });
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `El equipo responde con el estado ${response.status}.`;
  }
}

async function forget(ids) {
  try {
    const response = await send("DELETE", "/api/memories", { ids });
    if (response.ok) return true;
    say(await reason(response));
  } catch {
    say("No se puede hablar con el equipo. ¿Sigue encendido?");
  }
  return false;
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) yield JSON.parse(event.slice("data: ".length));
  }
}

// ── A question ───────────────────────────────────────────────────────────────────────────────────────────────────

async function ask(question) {
  addTurn("user", question);
  const { turn, words } = addTurn("assistant", "");
  asking = new AbortController();
  const conversation = messages; // another one may have begun when the answer ends
  let answer = "", sources = [], memories = [], dropped = 0, failed = "";
  busy(true);
  say("Pensando…");
  $("spoken").textContent = "";
  try {
    const asked = [...conversation, { role: "user", content: question }];
    const response = await send("POST", "/api/chat", { messages: asked }, asking.signal);
    if (!response.ok) {
      failed = await reason(response);
    } else {
      for await (const event of eventsOf(response)) {
        switch (event.type) {
          case "waiting": say(`Hay ${event.ahead} delante; espera un poco…`); break;
          case "remembered": memories = event.memories; break;
          case "searching": addNote(turn, `Busco en internet: «${event.query}»`); say("Buscando…"); break;
          case "searched":
            if (event.kind === "no_results") addNote(turn, "No he encontrado nada.");
            else if (event.detail) addNote(turn, event.detail, "error");
            break;
          case "read":
            sources = event.sources;
            dropped = event.dropped;
            break;
          case "text": answer += event.text; words.textContent = answer; toTheEnd(); break;
          case "error": failed = event.message; break;
        }
      }
    }
  } catch (error) {
    failed = error.name === "AbortError" ? "Parado." : "No se puede hablar con el equipo. ¿Sigue encendido?";
  }
  if (failed) addNote(turn, failed, "error");
  if (!answer.trim() && !failed) addNote(turn, "No ha sabido qué decir.", "error");
  if (dropped) addNote(turn, `No caben los ${dropped} mensajes más viejos; ya no los veo.`);
  if (sources.length) showSources(turn, sources);
  if (memories.length) showMemories(turn, memories);
  asking = null;
  busy(false);
  if (conversation !== messages) return;
  if (answer.trim()) messages.push({ role: "user", content: question }, { role: "assistant", content: answer.trim() });
  say("");
  $("spoken").textContent = failed || answer.trim(); // whole, once: pieces would be read out as they fall
  toTheEnd();
}

function busy(yes) {
  $("send").hidden = yes;
  $("stop").hidden = !yes;
  $("turns").setAttribute("aria-busy", yes);
  if (!yes) $("question").focus();
}

function restart() {
  asking?.abort();
  messages = [];
  $("turns").replaceChildren();
  $("welcome").hidden = false;
  say("");
  $("question").focus();
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const question = $("question").value.trim();
  if (!question || asking) return;
  $("question").value = "";
  ask(question);
});
$("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
$("stop").addEventListener("click", () => asking?.abort());
$("new").addEventListener("click", () => {
  restart();
  say("Conversación nueva.");
});
$("forget").addEventListener("click", () => {
  $("confirm").returnValue = "no";
  $("confirm").showModal();
});
$("confirm").addEventListener("close", async () => {
  if ($("confirm").returnValue !== "yes") return;
  asking?.abort(); // what is being told would be remembered once it is answered
  if (await forget("all")) {
    restart();
    say("He olvidado todo lo que recordaba.");
  }
});
$("question").focus();
