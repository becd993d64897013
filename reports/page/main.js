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
  document.documentElement.dataset.ready = 'no';
  requestAnimationFrame(() => { waiting = false; filtered(); document.documentElement.dataset.ready = 'yes'; });
}

// Plotly is packed; the policy knows it by its hash.
async function unpack(id) {
  const packed = document.getElementById(id);
  const bytes = Uint8Array.from(atob(packed.textContent), mark => mark.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  const script = document.createElement('script');
  script.textContent = await new Response(stream).text();
  packed.replaceWith(script);
}

try {
  await unpack('plotly');
} catch (error) {
  document.getElementById('count').textContent = `Plots and the table need a newer browser (${error.message}).`;
  throw error;
}
startChoices();
fillFilters(document.getElementById('filters'), changed);
filtered();
drawMatrices();
document.getElementById('every').addEventListener('click', ({ target }) => {
  const every = document.getElementById('table').classList.toggle('every');
  target.textContent = every ? 'First columns' : 'All columns';
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { drawFigures(rows); drawMatrices(); });
document.documentElement.dataset.ready = 'yes';
