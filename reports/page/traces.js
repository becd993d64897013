// From rows to plotly's traces. Pure but for the page's colours.

const DASHES = ['solid', 'dash', 'dot', 'dashdot', 'longdash', 'longdashdot'];
// In the order of MARKERS in reports/figures/series.py.
const SYMBOLS = ['circle', 'square', 'diamond', 'triangle-up', 'triangle-down', 'cross', 'x', 'star',
  'triangle-left', 'triangle-right', 'pentagon', 'hexagon', 'diamond-tall', 'hexagon2', 'octagon'];

const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = place => style(`--series-${place}`);

function faint(hex) {
  const [r, g, b] = [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${r}, ${g}, ${b}, 0.18)`;
}

const middle = values => {
  const sorted = values.toSorted((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
};

// Rows of a series as points, one an x: several rows of one x become their median and the hull of
// their intervals; too many x become as many groups of neighbours.
function points(rows, x, y, low, high) {
  const groups = new Map();
  for (const n of rows) {
    if (!(x(n) > 0) || !(y(n) > 0)) continue;
    if (groups.has(x(n))) groups.get(x(n)).push(n); else groups.set(x(n), [n]);
  }
  let found = [...groups.entries()].sort((a, b) => a[0] - b[0]).map(([at, members]) => ({
    x: at, y: middle(members.map(y)), rows: members,
    low: least(members.map(low)), high: most(members.map(high)),
  }));
  const step = Math.ceil(found.length / MOST_POINTS);
  if (step > 1) {
    found = Array.from({ length: Math.ceil(found.length / step) }, (_, n) => {
      const part = found.slice(n * step, (n + 1) * step);
      return {
        x: part[part.length >> 1].x, y: middle(part.map(p => p.y)),
        rows: part.flatMap(p => p.rows),
        low: least(part.map(p => p.low)), high: most(part.map(p => p.high)), thinned: true,
      };
    });
  }
  return found;
}
const least = values => values.reduce((a, b) => (b === null || (a !== null && a < b) ? a : b), null);
const most = values => values.reduce((a, b) => (b === null || (a !== null && a > b) ? a : b), null);

// The series of some rows, at most MOST_SERIES, each with label, colour, dash and symbol. With more
// algorithms than colours only those are bright that lead.
function lines(rows, without = [], key = n => n) {
  const members = new Map();
  for (const n of rows) {
    const s = key(data.of[n]);
    if (members.has(s)) members.get(s).push(n); else members.set(s, [n]);
  }
  const numbers = [...members.keys()], names = labels(numbers, without), seen = {};
  const crowd = distinct(numbers.map(s => data.series[s].name)).length > data.colours.length;
  return {
    all: numbers.length,
    drawn: numbers.slice(0, MOST_SERIES).map(s => {
      const { colour: place, mark, bright, worksharing } = data.series[s];
      seen[place] = (seen[place] ?? -1) + 1;
      return {
        series: s, rows: members.get(s), label: `${worksharing ? 'bound: ' : ''}${names.get(s)}`,
        colour: worksharing ? style('--quiet') : colour(place), bright: bright || !crowd,
        dash: DASHES[seen[place] % DASHES.length], symbol: SYMBOLS[mark],
      };
    }),
  };
}

// Whether ranks shared cores in a point's rows; its mark is hollow then.
const crowded = p => p.rows.some(n => data.crowded[n]);

const DIM = 0.35;
function scatter(line, found, hover) {
  return {
    type: 'scatter', mode: 'lines+markers', name: plain(line.label), legendgroup: plain(line.label),
    x: found.map(p => p.x), y: found.map(p => p.y), hoverinfo: 'text',
    hovertext: found.map(p => `<b>${plain(line.label)}</b><br>${hover(p)}`),
    line: { color: line.colour, dash: line.dash, width: line.bright ? 2 : 1 }, opacity: line.bright ? 1 : DIM,
    marker: { color: line.colour, symbol: found.map(p => line.symbol + (crowded(p) ? '-open' : '')), size: line.bright ? 7 : 5 },
  };
}

// A band for each stretch of points whose interval is known; of one point alone a line.
function band(line, found) {
  if (!line.bright) return [];
  const stretches = [[]];
  for (const p of found) {
    if (p.low === null || p.high === null || isOpen(p.low, p.high)) stretches.push([]);
    else stretches.at(-1).push(p);
  }
  return stretches.filter(known => known.length).map(known => ({
    type: 'scatter', mode: 'lines', x: [...known, ...known.toReversed()].map(p => p.x),
    y: [...known.map(p => p.high), ...known.toReversed().map(p => p.low)],
    fill: 'toself', fillcolor: faint(line.colour), hoverinfo: 'skip',
    line: { width: known.length > 1 ? 0 : 2, color: line.colour },
    showlegend: false, legendgroup: plain(line.label),
  }));
}

// A model's or a bound's line; `points` are [x, y].
function thin(line, pairs, dash, text) {
  return {
    type: 'scatter', mode: 'lines', x: pairs.map(p => p[0]), y: pairs.map(p => p[1]),
    line: { color: line.colour, dash, width: 1.2 }, opacity: 0.75, hoverinfo: 'text',
    hovertext: pairs.map(() => plain(text)), showlegend: false,
    ...(line.label ? { legendgroup: plain(line.label) } : {}),
  };
}

const hoverOf = (p, what) => {
  const n = p.rows[0], single = p.rows.length === 1;
  const interval = single ? intervalText(data.low[n], data.high[n], data.time[n]) : '';
  return [
    what,
    single && data.time[n] !== null ? `time ${seconds(data.time[n])}${interval && ` (95 %: ${interval})`}` : '',
    single && data.busbw[n] !== null ? `busbw ${rate(data.busbw[n])} GB/s` : '',
    single && data.n[n] !== null ? `${data.n[n]} iterations` : '',
    data.crowded[n] ? `oversubscribed: ${digits(data.perCore[n])} ranks per core` : '',
    single ? '' : `median of ${p.rows.length} rows${p.thinned ? ', neighbouring sizes' : ''}`,
  ].filter(Boolean).join('<br>');
};
