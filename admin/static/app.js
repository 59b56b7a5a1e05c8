// The pages work without this script. It updates numbers from the live stream, renews a region that
// changes while it is watched, and keeps empty fields out of shared links.
"use strict";

(function () {
  const region = document.getElementById("live");
  let stale = false; // the region must be renewed

  // working reports whether the reader uses the region, which then stays.
  function working() {
    return region.contains(document.activeElement) || String(getSelection()) !== "";
  }

  // renew fetches the page and replaces the region, unless the reader is working in it. It returns the new region.
  async function renew() {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.getElementById("live");
    if (!answer.ok || !fresh) return null;
    if (!working()) {
      region.replaceChildren(...fresh.childNodes);
      stale = false;
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
    const asOf = document.querySelector(".head time");
    let shown, messages = 0;
    stream.addEventListener("overview", (message) => {
      const overview = JSON.parse(message.data);
      update(overview);
      if (asOf) {
        asOf.dateTime = asOf.textContent = overview.at.slice(0, 19) + "Z";
        asOf.nextElementSibling?.remove(); // its age
      }
      // What is more than a number comes from the server: at once for lists and for a chart with a new minute,
      // and every 10 s for the counts in texts.
      const m = overview.metrics;
      const key = JSON.stringify([
        overview.open_circuits, overview.balanced, (overview.history || []).at(-1)?.start,
        m.dead_letters > 0, m.store_error, m.subscriptions.map((s) => [s.paused, s.circuit]),
      ]);
      if (shown !== undefined && shown !== key || ++messages % 10 === 0) stale = true;
      shown = key;
      if (stale && !document.hidden && !working()) renew().catch(() => {}); // the next message tries again
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
