"use strict";
// Theme, keyboard, the token inspector, and news of a growing run. Every page works without it.
(() => {
  const root = document.documentElement, body = document.body, $ = (id) => document.getElementById(id);
  const store = { get(key) { try { return localStorage.getItem(key); } catch { return null; } },
                  set(key, value) { try { localStorage.setItem(key, value); } catch { /* a file may not keep anything */ } } };
  const chosen = store.get("rollbook-theme");
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  const flip = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    store.set("rollbook-theme", root.dataset.theme);
  };
  $("theme").addEventListener("click", flip);
  const help = $("help");
  $("keys").addEventListener("click", () => help.showModal());

  // tokens: hover, touch or arrow keys
  const inspector = $("inspector");
  let tokens = [], at = -1;
  const listTokens = () => { tokens = Array.from(document.querySelectorAll(".t"));
    at = tokens.findIndex((one) => one.closest(".policy")) - 1;
  };
  listTokens();
  const inspect = (index, scroll) => {
    if (!inspector || index < 0 || index >= tokens.length) return;
    if (at >= 0 && tokens[at]) tokens[at].classList.remove("on");
    at = index;
    tokens[at].classList.add("on");
    inspector.textContent = tokens[at].textContent.replace(/\n/g, "") + "\n" + tokens[at].dataset.t;
    inspector.hidden = false;
    if (scroll) tokens[at].scrollIntoView({ block: "nearest" });
  };
  const turns = $("turns");
  if (turns) {
    const seek = (event) => { const span = event.target.closest(".t"); if (span) inspect(tokens.indexOf(span), false); };
    turns.addEventListener("mouseover", seek);
    turns.addEventListener("click", seek);
  }

  // rows
  let row = -1;
  const rows = () => Array.from(document.querySelectorAll("table.rows tbody tr"));
  const move = (by) => {
    const held = rows();
    if (!held.length) {
      const link = document.querySelector(by > 0 ? "a[rel=next]" : "a[rel=prev]");
      if (link) link.click();
      return;
    }
    if (held[row]) held[row].classList.remove("here");
    row = Math.min(Math.max(row + by, 0), held.length - 1);
    held[row].classList.add("here");
    held[row].scrollIntoView({ block: "nearest" });
  };

  let going = false;
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (typing) { if (event.key === "Escape") event.target.blur(); return; }
    if (going) {
      going = false;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const held = rows();
    switch (event.key) {
      case "g": going = true; setTimeout(() => { going = false; }, 1500); break;
      case "?": help.showModal(); break;
      case "d": flip(); break;
      case "/": {
        const search = $("search"), link = document.querySelector('nav a[data-key="t"]');
        if (search) { search.focus(); search.select(); } else if (link) link.click();
        event.preventDefault();
        break;
      }
      case "j": move(1); break;
      case "k": move(-1); break;
      case "Enter": if (held[row]) { const link = held[row].querySelector("a"); if (link) link.click(); } break;
      case "ArrowRight": if (tokens.length) { inspect(at + 1, true); event.preventDefault(); } break;
      case "ArrowLeft": if (tokens.length) { inspect(Math.max(at - 1, 0), true); event.preventDefault(); } break;
      case "Escape": if (inspector) inspector.hidden = true; break;
    }
  });

  const choose = $("choose");
  if (choose) choose.addEventListener("submit", (event) => {
    event.preventDefault();
    const names = Array.from(choose.querySelectorAll("input:checked"), (box) => box.value);
    location.search = names.length ? "?runs=" + encodeURIComponent(names.join(",")) : "";
  });
  const filters = document.querySelector("form.filters[method]");
  if (filters) {
    filters.addEventListener("submit", () => {          // addresses name what is asked and nothing else
      for (const field of filters.elements) if (field.name && !field.value) field.disabled = true;
    });
    filters.addEventListener("change", (event) => { if (event.target.tagName === "SELECT") filters.requestSubmit(); });
  }

  // a run that goes on: pages that only sum up are drawn again, pages that are read say that there is more
  if (!body.dataset.served) return;
  const watched = body.dataset.run, redraw = ["overview", "runs", "compare", "grid"].includes(body.dataset.page);
  let known = null;
  const look = async () => {
    try {
      const sizes = await (await fetch("/live")).json();
      const now = JSON.stringify(watched ? sizes[watched] : sizes);
      if (known !== null && now !== known) {
        if (redraw && !document.querySelector("main :focus")) {
          const text = await (await fetch(location.href)).text();
          const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
          if (fresh) {
            const open = Array.from(document.querySelectorAll("main details"), (one) => one.open), y = scrollY;
            $("main").replaceChildren(...fresh.childNodes);
            document.querySelectorAll("main details").forEach((one, index) => { one.open = Boolean(open[index]); });
            scrollTo(0, y);
            body.dataset.drawn = String(Number(body.dataset.drawn || 0) + 1);
          }
        } else {
          const news = $("news"), again = document.createElement("a");
          again.href = location.href;
          again.textContent = "load the page again";
          news.replaceChildren("The run has recorded more since this page was drawn: ", again);
          news.hidden = false;
        }
      }
      known = now;
    } catch { /* the server is gone; the page stays as it is */ }
    setTimeout(look, 2000);
  };
  look();
})();
