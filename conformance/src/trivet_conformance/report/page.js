"use strict";
(() => {
  const buttons = [...document.querySelectorAll("[data-filter]")];
  const rows = [...document.querySelectorAll("[data-status]")];
  const note = document.getElementById("shown");
  const total = rows.filter((row) => row.closest("table.all")).length;
  const show = (wanted) => {
    const known = buttons.some((button) => button.dataset.filter === wanted);
    const status = known ? wanted : "";
    for (const button of buttons) {
      button.setAttribute("aria-pressed", String(button.dataset.filter === status));
    }
    let shown = 0;
    for (const row of rows) {
      row.hidden = status !== "" && !row.dataset.status.split(" ").includes(status);
      if (!row.hidden && row.closest("table.all")) shown += 1;
    }
    if (note) note.textContent = `${shown} of ${total} listed checks are shown`;
    document.documentElement.dataset.shown = String(shown);
    if (status !== "") {
      for (const all of document.querySelectorAll("details.list")) all.open = true;
    }
  };
  const fromHash = () => {
    const found = /^#filter=([a-z_]*)$/.exec(location.hash);
    if (found) show(found[1]);
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const status = button.dataset.filter;
      history.replaceState(null, "", `#filter=${status}`);
      show(status);
    });
  }
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "selected";
      }
    });
  }
  addEventListener("hashchange", fromHash);
  show("");
  fromHash();
})();
