// The pages work without this script. It updates numbers from the live stream, renews a region that
// changes while it is watched, and keeps empty fields out of shared links.
"use strict";

(function () {
  const region = document.getElementById("live");

  // renew fetches the page and replaces the region, unless the reader is working in it.
  async function renew() {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!answer.ok || !fresh) return null;
    if (!region.contains(document.activeElement) && String(getSelection()) === "") {
      region.replaceChildren(...fresh.childNodes);
    }
    return fresh;
  }

  function at(value, path) {
    return path.split(".").reduce((v, name) => (v == null ? undefined : v[name]), value);
  }

  // update writes the numbers of a live message into the page.
  function update(overview) {
    for (const e of document.querySelectorAll("[data-live]")) {
      const value = at(overview, e.dataset.live);
      if (typeof value === "number") e.textContent = value.toLocaleString("en-US");
    }
    for (const e of document.querySelectorAll("[data-live-show]")) e.hidden = !at(overview, e.dataset.liveShow);
    for (const e of document.querySelectorAll("[data-live-hide]")) e.hidden = !!at(overview, e.dataset.liveHide);
  }

  function watch(url) {
    const stream = new EventSource(url);
    let shown;
    stream.addEventListener("overview", (message) => {
      const overview = JSON.parse(message.data);
      update(overview);
      // What is more than a number comes from the server: lists, and a chart with a new minute.
      const m = overview.metrics;
      const key = JSON.stringify([
        overview.open_circuits, overview.balanced, (overview.history || []).length, (overview.history || []).at(-1)?.at,
        m.dead_letters > 0, m.store_error, m.subscriptions.map((s) => [s.paused, s.circuit]),
      ]);
      if (shown !== undefined && shown !== key) renew().catch(() => {});
      shown = key;
    });
    addEventListener("pagehide", () => stream.close());
  }

  // poll renews the region until the server marks it as finished, and then loads the finished page.
  function poll() {
    setTimeout(async () => {
      const fresh = await renew().catch(() => null);
      if (fresh && !fresh.dataset.poll) location.reload();
      else poll();
    }, Number(region.dataset.poll));
  }

  if (region && region.dataset.liveFrom) watch(region.dataset.liveFrom);
  if (region && region.dataset.poll) poll();

  for (const form of document.querySelectorAll("form[data-clean]")) {
    form.addEventListener("formdata", (event) => {
      for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
    });
  }
})();
