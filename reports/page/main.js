// Puts the parts to work and draws again when the filter, the theme or the order changes.

let rows = [];

function filtered() {
  rows = keptRows();
  const chosen = varying.filter(name => state.chosen[name] !== undefined).map(name => `${DIMENSIONS[name].toLowerCase()} ${word(name, state.chosen[name])}`);
  const all = data.of.length;
  document.getElementById('count').textContent = rows.length === all ? `All ${all.toLocaleString('en')} rows`
    : `${rows.length.toLocaleString('en')} of ${all.toLocaleString('en')} rows${chosen.length ? `: ${chosen.join(', ')}` : ''}`;
  drawFigures(rows);
  fillTable(rows);
}

// Typing and clicking stay quick on large pages: one redrawing a frame.
let waiting = false;
function changed() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; filtered(); });
}

startChoices();
fillFilters(document.getElementById('filters'), changed);
filtered();
drawMatrices();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { drawFigures(rows); drawMatrices(); });
document.documentElement.dataset.ready = 'yes';
