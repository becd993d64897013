// The page's data and what the filter keeps of it. Rows are numbers; series hold their words.

const data = JSON.parse(document.getElementById('data').textContent);
const MOST_SERIES = 24, MOST_POINTS = 300;
const DIMENSIONS = {
  collective: 'Collective', dtype: 'Type', op: 'Operation', root: 'Root', ranks: 'Ranks',
  transport: 'Transport', placement: 'Placement', worksharing: 'Work', reading: 'Time', run: 'Run',
};
const PLACEMENT = { out: 'out-of-place', in: 'in-place' };

const word = (name, value) =>
  value === null || value === '' ? (name === 'root' ? 'none' : 'not said')
    : name === 'placement' ? PLACEMENT[value] ?? value
      : name === 'worksharing' ? (value ? 'shared by ranks' : 'its own') : String(value);
// An algorithm that did not have its work to itself; the contender named after that needs no mark.
const marked = s => s.algorithm + (s.worksharing && s.algorithm !== 'worksharing' ? '*' : '');
const distinct = values => [...new Set(values)];
const ascending = (a, b) => (typeof a === 'number' && typeof b === 'number' ? a - b
  : String(a).localeCompare(String(b), 'en', { numeric: true }));

// The value that comes most often; of several the largest.
function commonest(values) {
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1] || b[0] - a[0])[0]?.[0];
}

// Dimensions in which the series of this page differ.
const varying = Object.keys(DIMENSIONS).filter(
  name => distinct(data.series.map(s => s[name])).length > 1);
const algorithms = distinct(data.series.map(s => s.name)).sort(ascending);
const allSizes = distinct(data.size.filter(size => size !== null)).sort(ascending);

const state = {
  chosen: {}, // a dimension's value, or undefined for all
  hidden: new Set(), // algorithms that are switched off
  words: '',
  from: null, to: null, // bounds on the size
  at: null, // the size of distribution and scaling
  fits: false, bounds: true,
  sort: null, // [column's name, 1 or -1]
  shown: 0, // how many rows the table shows
};

const searched = data.series.map(s =>
  [s.name, ...Object.keys(DIMENSIONS).map(name => word(name, s[name]))].join(' ').toLowerCase());

// Which series the filter keeps; `except` names a dimension whose choice does not count.
function keptSeries(except) {
  const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
  return data.series.map((s, n) =>
    !state.hidden.has(s.name)
    && varying.every(name => name === except || state.chosen[name] === undefined
      || s[name] === state.chosen[name])
    && words.every(w => searched[n].includes(w)));
}

function keptRows(except) {
  const series = keptSeries(except), found = [];
  for (let n = 0; n < data.of.length; n++) {
    const size = data.size[n];
    if (series[data.of[n]] && (state.from === null || size >= state.from)
      && (state.to === null || size <= state.to)) found.push(n);
  }
  return found;
}

// What tells a series from the others that are kept, as its label: the algorithm, and of the
// dimensions those that tell something which the ones before have not told.
function labels(numbers, without = []) {
  const named = new Map(numbers.map(n => [n, data.series[n].name]));
  const count = () => new Set(named.values()).size;
  for (const name of varying.filter(v => !without.includes(v))) {
    const before = new Map(named), known = count();
    for (const n of numbers) {
      const said = word(name, data.series[n][name]);
      named.set(n, `${named.get(n)}, ${name === 'ranks' ? `${said} ranks` : said}`);
    }
    if (count() === known) for (const n of numbers) named.set(n, before.get(n));
  }
  return named;
}
