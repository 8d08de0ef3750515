"use strict";
for (const zoom of document.querySelectorAll(".zoom")) {
  const drawing = zoom.parentElement.querySelector(".scroll");
  let factor = 1;
  zoom.addEventListener("click", (event) => {
    const by = event.target.dataset.by;
    if (!by) return;
    const fit = (drawing.clientWidth - 20) / (drawing.scrollWidth - 20);
    factor = by === "1" ? 1 : by === "fit" ? factor * fit : Math.min(8, Math.max(0.1, factor * Number(by)));
    for (const part of drawing.children) part.style.zoom = factor;
  });
}
