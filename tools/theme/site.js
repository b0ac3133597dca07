// The keyboard reaches the labels that open the drawer, its sections, the contents and the search.
// Enter clicks a focused label already; Space does here. Closed parts take no focus.
"use strict";
const kinds = ["md-header__button", "md-sidebar-button", "md-nav__link[for^=__nav]"];
const labels = document.querySelectorAll(kinds.map(kind => "label." + kind));
const parts = { __drawer: ".md-sidebar--primary", __toc: ".md-sidebar--secondary .md-sidebar__inner" };
function settle() {
  for (const label of labels) {
    label.tabIndex = getComputedStyle(label).pointerEvents === "none" ? -1 : 0; // a heading on wide screens
    label.ariaExpanded = document.getElementById(label.htmlFor).checked;
  }
  for (const [toggle, selector] of Object.entries(parts)) {
    const part = document.querySelector(selector);
    const floats = part && ["fixed", "absolute"].includes(getComputedStyle(part).position);
    if (part) part.inert = floats && !document.getElementById(toggle)?.checked;
  }
}
for (const label of labels) {
  label.role = "button";
  if (label.matches(".md-sidebar-button")) label.ariaLabel = "Contents of this page";
}
addEventListener("keydown", event => {
  const drawer = document.getElementById("__drawer");
  if (event.key === "Escape" && drawer.checked) {
    drawer.click();
    labels[0].focus();
  }
  if (event.key !== " " || event.target.tagName !== "LABEL") return;
  event.preventDefault();
  event.target.click();
});
addEventListener("change", settle);
addEventListener("resize", settle);
settle();
