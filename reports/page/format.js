// How figures look; the same words as busbar/units.py.

function digits(value) {
  const size = Math.abs(value);
  if (size >= 999.5) return value.toFixed(0);
  if (size >= 0.1) return value.toPrecision(3);
  if (size >= 1e-4 || !size) return String(+value.toPrecision(3));
  return value.toExponential(2).replace(/\.?0*e-(\d)$/, 'e-0$1').replace(/\.?0*e/, 'e');
}

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

// A time at a tick: 2 us, 0.5 us.
const tickTime = value => seconds(value).replace(/\.0+ |(?<=\.\d)0+ /, ' ');

const rate = value => (value === null ? 'N/A' : digits(value / 1e9));
const percent = value => (value === null ? '' : `${(100 * value).toFixed(1)}%`);
// As `limit_text` in reports/statistics/quantities.py.
const shareText = share => (share > 1.5 ? '>150%' : percent(share));
// As `ABOVE_LIMIT` in reports/analysis/cautions.py.
const isExceeded = share => share > 1.05;
const optional = value => (value === null ? '' : seconds(value));

// The text of a metric without its unit: data.metrics says which function and scale it takes.
const metricText = metric => value =>
  (value === null ? '' : { seconds, percent }[metric.kind]?.(value) ?? digits(value / metric.scale));

// An interval too wide to show. The ends of a rate's stand the other way round.
const isOpen = (low, high) => Math.max(low, high) >= 100 * Math.min(low, high);

function intervalText(low, high, middle) {
  if (low === null || high === null || !middle) return '';
  if (isOpen(low, high)) return '-';
  const below = (100 * (middle - low)) / middle, above = (100 * (high - middle)) / middle;
  if (Math.max(below, above) < 0.05) return '<0.1%';
  if (high >= 10 * middle) return `-${below.toFixed(1)}% +${digits(high / middle)}x`;
  return `-${below.toFixed(1)} +${above.toFixed(above < 99.95 ? 1 : 0)}%`;
}

// plotly reads a little HTML in names and labels; what comes from a file is text.
const plain = text =>
  String(text).replace(/[&<>]/g, mark => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[mark]);

const unplain = text => text.replace(/&(amp|lt|gt);/g, (_, mark) => ({ amp: '&', lt: '<', gt: '>' })[mark]);

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && typeof value !== 'string') made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}
