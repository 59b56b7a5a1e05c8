// The pages work without this script. It renews the figures of a page while it is looked at, marks what has changed, says
// when the connection is lost, and keeps empty fields out of shared links.
"use strict";

(function () {
  const region = document.getElementById("live");
  const state = document.getElementById("connection");

  const silence = 25000; // of a stream that is lost: the server sends something every 10 s
  const patience = 30000; // between two attempts, at most

  let lines = []; // of the content, as the server has it
  let unseen = false; // lines are newer than the page
  let settled = false; // the page has had the content of this stream

  // say tells the reader about the connection.
  function say(text, kind) {
    if (state.textContent !== text) state.textContent = text;
    state.className = kind ? "badge " + kind : "";
    region.classList.toggle("stale", kind === "bad");
  }

  function clock() {
    return new Date().toISOString().slice(11, 19);
  }

  // mark shows that an element has changed. Ages change all the time, and charts are seen to.
  function mark(node) {
    const e = node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement;
    if (!settled || !e || e.closest("time, .age, svg, .axis")) return;
    const colour = getComputedStyle(document.documentElement).getPropertyValue("--changed");
    (e.closest("dd, td, th, li, .badge, .count, p") || e).animate({ backgroundColor: [colour, "transparent"] }, 3000);
  }

  // alike reports whether a node can become another one. The property id of a form may be an input of that name.
  function alike(a, b) {
    return a.nodeName === b.nodeName && (a.nodeType !== Node.ELEMENT_NODE ||
      ["id", "data-key", "aria-labelledby"].every((name) => a.getAttribute(name) === b.getAttribute(name)));
  }

  // morph makes an element like another one. Elements stay the same, and with them the focus and what was typed.
  function morph(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.data = fresh.data;
      mark(old);
      return;
    }
    if (old.tagName === "FORM" && (old.contains(document.activeElement) || old.dataset.typed)) return;
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name); // the reader has opened it
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    morphChildren(old, fresh);
  }

  function morphChildren(old, fresh) {
    const keyed = new Map([...old.children].filter((e) => e.dataset.key !== undefined).map((e) => [e.dataset.key, e]));
    let at = old.firstChild;
    for (const want of [...fresh.childNodes]) {
      let have = null;
      if (want.dataset?.key !== undefined) {
        have = keyed.get(want.dataset.key);
        keyed.delete(want.dataset.key);
      } else {
        for (have = at; have && !alike(have, want);) have = have.nextSibling;
      }
      if (!have || !alike(have, want)) {
        mark(old.insertBefore(document.importNode(want, true), at));
        continue;
      }
      if (want.dataset?.key === undefined) {
        while (at !== have) at = drop(at, keyed);
      }
      if (at === have) at = at.nextSibling;
      else old.insertBefore(have, at);
      morph(have, want);
    }
    while (at) at = drop(at, null);
  }

  // used reports whether the reader points at a row or a control of an element, or has the focus in it.
  function used(e) {
    return e.nodeType === Node.ELEMENT_NODE && (e.contains(document.activeElement) ||
      e.matches("[data-key]:hover, a:hover, button:hover") || !!e.querySelector("[data-key]:hover, a:hover, button:hover"));
  }

  // drop removes a node, and returns the next one. A row of keyed is needed further on. What is used stays for as long: something else
  // would move under the pointer.
  function drop(node, keyed) {
    const next = node.nextSibling;
    const key = node.dataset?.key;
    if (key !== undefined && keyed?.get(key) === node) return next;
    if (used(node)) node.classList.add("gone");
    else node.remove();
    return next;
  }

  // paint brings the page up to date, unless the reader selects a text. What is under the pointer, or has the focus, stays
  // where it is on the screen.
  function paint() {
    if (!unseen || !getSelection().isCollapsed) return;
    unseen = false;
    const fresh = new DOMParser().parseFromString(lines.join("\n"), "text/html").body;
    const badge = fresh.querySelector("#attention-count");
    if (badge) {
      badge.remove();
      morph(document.getElementById("attention-count"), badge);
    }
    const anchor = [...region.querySelectorAll(":hover")].pop() || (region.contains(document.activeElement) && document.activeElement);
    const before = anchor && anchor.getBoundingClientRect().top;
    morphChildren(region, fresh);
    if (anchor && anchor.isConnected) scrollBy({ top: anchor.getBoundingClientRect().top - before, behavior: "instant" });
  }

  function take(message) {
    if (message.lines) lines = message.lines;
    for (const s of (message.splices || []).reverse()) lines.splice(s.at, s.cut, ...s.put);
    if (lines.length > 0) {
      unseen = true;
      paint();
      settled = true;
    }
    if (message.problem) say("Not up to date: " + message.problem, "bad");
    else connected();
  }

  let stream = null; // the AbortController of the stream
  let since = ""; // when the connection was lost
  let wait = 1000;
  let retry = 0, watchdog = 0, calm = 0; // timers

  function connected() {
    clearTimeout(calm);
    if (since) {
      say("Connected again at " + clock(), "good");
      calm = setTimeout(() => say("Live", ""), 10000);
    } else if (state.className !== "badge good") say("Live", "");
    since = "";
    wait = 1000;
  }

  async function open() {
    clearTimeout(retry);
    if (document.hidden || stream) return;
    const own = stream = new AbortController();
    settled = false;
    let why = "lost";
    try {
      const answer = await fetch(location.pathname + location.search, {
        headers: { Accept: "text/event-stream" }, cache: "no-store", signal: own.signal,
      });
      if (answer.ok && answer.headers.get("Content-Type") === "text/event-stream") why = await read(answer.body, own);
      else why = String(answer.status);
    } catch {
      // the connection is lost
    }
    clearTimeout(watchdog);
    if (stream !== own) return; // the page was hidden
    stream = null;
    ended(why);
  }

  // read takes the messages of a stream, and returns why it ended.
  async function read(body, own) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "", why = "lost";
    for (;;) {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => own.abort(), silence);
      const { value, done } = await reader.read();
      if (done) return why;
      text += value;
      for (let end; (end = text.indexOf("\n\n")) >= 0;) {
        const [event, data] = text.slice(0, end).split("\ndata: ");
        text = text.slice(end + 2);
        if (event === "event: page") take(JSON.parse(data));
        if (event === "event: end") why = JSON.parse(data).why;
      }
    }
  }

  function ended(why) {
    if (why === "again") return open();
    clearTimeout(calm);
    since = since || clock();
    if (why === "denied" || why === "401" || why === "403") {
      say("Signed out at " + since + ". Reload to sign in.", "bad");
      return; // each attempt would count as a failed login
    }
    if (why === "full" || why === "429") {
      say("Not live since " + since + ": too many open pages", "bad");
      wait = patience;
    } else say("Connection lost at " + since + ". Trying again.", "bad");
    retry = setTimeout(open, wait * (0.5 + Math.random() / 2)); // not all pages at once, after a restart
    wait = Math.min(2 * wait, patience);
  }

  function close() {
    clearTimeout(retry);
    clearTimeout(watchdog);
    const own = stream;
    stream = null;
    if (own) own.abort();
  }

  if (region && region.hasAttribute("data-live")) {
    addEventListener("pagehide", close);
    addEventListener("pageshow", open);
    document.addEventListener("visibilitychange", () => {
      wait = 1000;
      if (document.hidden) close();
      else open();
    });
    document.addEventListener("selectionchange", paint);
    for (const moves of ["pointerover", "focusin"]) {
      document.addEventListener(moves, () => {
        if (!region.querySelector(".gone")) return;
        unseen = true;
        paint();
      });
    }
    region.addEventListener("input", (event) => {
      if (event.target.form) event.target.form.dataset.typed = "true";
    });
  }

  for (const form of document.querySelectorAll("form[data-clean]")) {
    form.addEventListener("formdata", (event) => {
      for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
    });
  }
})();
