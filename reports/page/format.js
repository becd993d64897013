// How figures look; the same words as reports/shown.py.

const digits = value => {
  if (Math.abs(value) >= 999.5) return value.toFixed(0);
  return Math.abs(value) < 0.1 ? String(+value.toPrecision(3)) : value.toPrecision(3);
};

function sizeText(bytes) {
  if (bytes === null) return '?';
  let value = bytes, unit = '';
  for (const next of 'KMGT') {
    if (value < 1024 || value % 1024) break;
    value /= 1024;
    unit = next;
  }
  return value + unit;
}

function seconds(value) {
  if (value === null) return 'N/A';
  for (const [scale, unit] of [[1e-6, 'us'], [1e-3, 'ms']])
    if (value < scale * 1000) return `${digits(value / scale)} ${unit}`;
  return `${digits(value)} s`;
}

const rate = value => (value === null ? 'N/A' : digits(value / 1e9));
const percent = value => (value === null ? '' : `${(100 * value).toFixed(1)}%`);
const optional = value => (value === null ? '' : seconds(value));

function intervalText(low, high, middle) {
  if (low === null || high === null || !middle) return '';
  const below = (100 * (middle - low)) / middle, above = (100 * (high - middle)) / middle;
  return `-${below.toFixed(1)} +${above.toFixed(1)}%`;
}

// plotly reads a little HTML in names and labels; what comes from a file is text.
const plain = text =>
  String(text).replace(/[&<>]/g, mark => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[mark]);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && typeof value !== 'string') made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
