// The figures: what each draws, what it says in words, and its numbers as a table.

const GB = 1e9;

function sizeAxis(sizes) {
  const shown = distinct(sizes).sort(ascending), step = Math.ceil(shown.length / 9);
  const ticks = shown.filter((_, n) => n % step === 0);
  return { type: 'log', title: { text: 'size (bytes)' }, tickvals: ticks, ticktext: ticks.map(sizeText) };
}

// Ticks at 1, 2 and 5 of each decade; where they are more than `room`, at 1 with small ones between.
function timeAxis(times, room = 12) {
  const low = Math.min(...times) / 1.2, high = Math.max(...times) * 1.2, ticks = [];
  for (let decade = Math.floor(Math.log10(low)); decade <= Math.ceil(Math.log10(high)); decade++)
    ticks.push(...[1, 2, 5].map(step => +(step * 10 ** decade).toPrecision(2)));
  const shown = ticks.filter(t => t >= low && t <= high), wide = shown.length > room;
  const first = t => t.toExponential().startsWith('1'), named = wide ? shown.filter(first) : shown;
  const between = wide ? { tickvals: shown.filter(t => !first(t)), ticks: 'outside', ticklen: 3 } : {};
  return {
    type: 'log', title: { text: 'time', standoff: 10 }, range: [Math.log10(low), Math.log10(high)],
    tickvals: named, ticktext: named.map(tickTime), minor: between,
  };
}
// Rates from zero to the highest line: a wide band would leave no room for lines.
const rateAxis = (text, values) => ({ title: { text }, range: [0, 1.06 * Math.max(...values)] });
// What the lines of some traces reach, without bands.
const heights = traces => traces.filter(t => !t.fill).flatMap(t => t.y).filter(y => y > 0);

const sizeOf = n => data.size[n], rateOf = n => data.busbw[n] / GB, timeOf = n => data.time[n];
const factorOf = rows => middle(rows.map(n => (data.busbw[n] * data.time[n]) / data.size[n]));
// The end of a rate's interval that belongs to an end of the time's.
const rateAt = name => n => (data[name][n] ? (data.busbw[n] * data.time[n]) / data[name][n] / GB : null);
const timeAt = name => n => data[name][n];

// Lines with their bands, and their fits where `fitted` turns a fit into points [x, y].
function curves({ all, drawn }, x, y, low, high, said, fitted) {
  const traces = [], table = [];
  for (const line of drawn) {
    const found = points(line.rows, x, y, low, high);
    if (!found.length) continue;
    traces.push(...band(line, found), scatter(line, found, p => hoverOf(p, said(p))));
    const fit = state.fits && line.bright && fitted && data.series[line.series].fit, pairs = fit && fitted(fit, line);
    if (pairs) traces.push(thin(line, pairs, 'dot', `fit of ${line.label}: ${fit.text}`));
    table.push([line, found]);
  }
  traces.sort((a, b) => (a.opacity ?? 1) - (b.opacity ?? 1)); // what is dimmed lies below
  return { traces, table, all, drawn };
}
const along = (figure, name) => figure.table.flatMap(([, found]) => found.map(p => p[name]));

function fittedRates(fit, line) {
  const timed = line.rows.filter(n => data.time[n] && data.busbw[n] && data.size[n]);
  const factor = timed.length && factorOf(timed);
  return timed.length ? fit.sizes.map((s, i) => [s, (factor * s) / fit.times[i] / GB]) : null;
}

const FIGURES = {
  busbw(rows) {
    const figure = curves(lines(rows), sizeOf, rateOf, rateAt('high'), rateAt('low'),
      p => `${sizeText(p.x)}: ${digits(p.y)} GB/s`, fittedRates);
    if (state.bounds) figure.traces.push(...boundLines(rows, false));
    return figure.traces.length && {
      ...figure, x: sizeAxis(along(figure, 'x')), y: rateAxis('busbw (GB/s)', heights(figure.traces)),
      show: y => `${digits(y)} GB/s`, head: 'size', row: sizeText, best: Math.max, word: 'highest',
    };
  },

  latency(rows) {
    const figure = curves(lines(rows), sizeOf, timeOf, timeAt('low'), timeAt('high'),
      p => `${sizeText(p.x)}: ${seconds(p.y)}`, fit => fit.sizes.map((s, i) => [s, fit.times[i]]));
    if (state.bounds) figure.traces.push(...boundLines(rows, true));
    return figure.traces.length && {
      ...figure, x: sizeAxis(along(figure, 'x')), y: timeAxis(heights(figure.traces)),
      show: seconds, head: 'size', row: sizeText, best: Math.min, word: 'least',
    };
  },

  iterations(rows) {
    const having = rows.filter(n => data.samples[n]);
    const at = state.at ?? commonest(having.map(sizeOf)) ?? null;
    const { all, drawn } = lines(having.filter(n => data.size[n] === at)), traces = [], table = [];
    const everyTime = drawn.flatMap(l => l.rows.flatMap(n => data.samples[n])).filter(t => t > 0);
    const longest = most(everyTime), shortest = least(everyTime), wide = longest > 20 * shortest;
    const [scale, unit] = wide || longest === null || longest >= 1 ? [1, 's'] : longest >= 1e-3 ? [1e3, 'ms'] : [1e6, 'us'];
    for (const line of drawn) {
      const times = line.rows.flatMap(n => data.samples[n]).sort((a, b) => a - b);
      const found = [times[0], ...times].map((t, i) => ({ x: t, y: i / times.length, rows: line.rows }));
      traces.push({
        ...scatter(line, found, p => `${percent(p.y)} of iterations at or below ${seconds(p.x)}`),
        x: found.map(p => p.x * scale), mode: 'lines', line: { color: line.colour, dash: line.dash, width: line.bright ? 2 : 1, shape: 'hv' },
      });
      const quantile = q => times[Math.max(0, Math.ceil(q * times.length) - 1)];
      table.push([line, [0, 0.25, 0.5, 0.75, 0.95, 1].map(q => ({ x: q, y: quantile(q) }))]);
    }
    const left = data.samplesLeftOut ? ` For lack of room ${data.samplesLeftOut} rows have no distribution here.` : '';
    return traces.length && {
      traces, table, all, drawn,
      x: { ...(wide ? timeAxis(everyTime, innerWidth < 600 ? 5 : 9) : {}), title: { text: `time of an iteration at ${sizeText(at)}${wide ? '' : ` (${unit})`}` } },
      y: { title: { text: 'share of iterations' }, tickformat: '.0%', range: [0, 1.02] },
      note: `Size: ${sizeText(at)}.${left}`, show: seconds, head: 'share',
      row: q => (q === 0 ? 'least' : q === 1 ? 'most' : `${100 * q} %`), best: Math.min, word: 'least',
    };
  },

  // The choice of a rank count does not count here, since all are wanted.
  scaling(_) {
    if (!varying.includes('ranks')) return null;
    const rows = keptRows('ranks').filter(n => data.series[data.of[n]].ranks);
    const at = state.at ?? commonest(rows.map(sizeOf)) ?? null;
    const chosen = rows.filter(n => data.size[n] === at), rated = chosen.some(n => data.busbw[n]);
    const same = new Map(); // series that differ in ranks only (and in the file) are one line
    const key = s => {
      const words = JSON.stringify([data.series[s].name, ...varying.filter(d => d !== 'ranks' && d !== 'run').map(d => data.series[s][d])]);
      if (!same.has(words)) same.set(words, s);
      return same.get(words);
    };
    const show = rated ? y => `${digits(y)} GB/s` : seconds;
    const figure = curves(lines(chosen, ['ranks', 'run'], key), n => data.series[data.of[n]].ranks,
      rated ? rateOf : timeOf, rated ? rateAt('high') : timeAt('low'), rated ? rateAt('low') : timeAt('high'),
      p => `${p.x} ranks: ${show(p.y)}`);
    const counts = distinct(along(figure, 'x')).sort(ascending);
    return counts.length > 1 && {
      ...figure, x: { type: 'log', title: { text: 'ranks' }, tickvals: counts, ticktext: counts.map(String) },
      y: rated ? rateAxis('busbw (GB/s)', along(figure, 'y')) : timeAxis(along(figure, 'y')),
      note: `Size: ${sizeText(at)}.`, show, head: 'ranks', row: String,
      best: rated ? Math.max : Math.min, word: rated ? 'highest' : 'least',
    };
  },
};

// What other benchmarks measure beside time and busbw: a figure each, of the same form.
for (const metric of data.metrics.filter(m => m.drawn)) {
  const text = metricText(metric), none = () => null;
  const show = value => `${text(value)} ${metric.unit}`.trim();
  const shown = metric.kind === 'figure' ? value => value / metric.scale : value => value;
  FIGURES[metric.column] = rows => {
    const known = n => data[metric.column][n], figure = curves(lines(rows), sizeOf, known, none, none, p => `${sizeText(p.x)}: ${show(p.y)}`);
    for (const trace of figure.traces) trace.y = trace.y.map(shown);
    const unit = metric.unit ? `${metric.name} (${metric.unit})` : metric.name;
    const y = metric.kind === 'seconds' ? timeAxis(along(figure, 'y')) : { title: { text: unit }, rangemode: 'tozero' };
    return figure.traces.length && {
      ...figure, x: sizeAxis(along(figure, 'x')), y: metric.kind === 'percent' ? { ...y, tickformat: '.0%' } : { ...y, title: { text: unit } },
      show, head: 'size', row: sizeText,
      best: metric.more ? Math.max : Math.min, word: metric.more ? 'highest' : 'least',
    };
  };
}

const BOUNDS = ' bounds'; // no line has this name
// One line for each bound that the kept rows have: sizes against rates, or against times. It has a
// gap (null) where no bound is known, or a row exceeds it, as in plot.py.
function boundLines(rows, asTime) {
  const found = new Map(), gaps = new Map();
  for (const n of rows) {
    const s = data.series[data.of[n]], size = data.size[n];
    if (!(size > 0)) continue;
    const key = [s.collective, `${s.ranks} ranks`, PLACEMENT[s.placement]].join(', ');
    if (!gaps.has(key)) gaps.set(key, new Map());
    const exceeded = data.bound[n] && isExceeded(data.busbw[n] / data.bound[n]);
    if (exceeded || !gaps.get(key).has(size)) gaps.get(key).set(size, exceeded);
    if (!data.bound[n]) continue;
    const value = asTime ? (data.busbw[n] * data.time[n]) / data.bound[n] : data.bound[n] / GB;
    if (!found.has(key)) found.set(key, new Map());
    const known = found.get(key).get(size) ?? value;
    found.get(key).set(size, asTime ? Math.min(known, value) : Math.max(known, value));
  }
  for (const [key, at] of found) {
    for (const [size, exceeded] of gaps.get(key)) if (exceeded || !at.has(size)) at.set(size, null);
    if ([...at.values()].every(value => value === null)) found.delete(key);
  }
  const show = value => (asTime ? seconds(value) : `${digits(value)} GB/s`);
  return [...found].map(([key, at]) => {
    const pairs = [...at].sort((a, b) => a[0] - b[0]);
    const name = found.size > 1 ? plain(`limit: ${key}`) : 'limit', first = key === [...found.keys()][0];
    return {
      ...thin({ colour: style('--quiet') }, pairs, 'longdashdot', ''), legendgroup: BOUNDS,
      // A bound between two gaps is a point, which no line shows.
      mode: 'lines+markers', marker: { color: style('--quiet'), symbol: 'line-ew-open', size: 12, line: { width: 2 } },
      name: found.size > 1 ? `${found.size} limits` : name, showlegend: first,
      hovertext: pairs.map(([size, value]) =>
        value === null ? '' : `${name}<br>${sizeText(size)}: ${show(value)}`),
    };
  });
}

function layout(more) {
  const axis = { color: style('--ink'), gridcolor: style('--rule'), zerolinecolor: style('--rule'), linecolor: style('--rule'), automargin: true };
  const narrow = innerWidth < 600;
  return {
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', autosize: true,
    font: { family: 'system-ui, sans-serif', size: narrow ? 11 : 13, color: style('--ink') },
    margin: { l: 8, r: 12, t: 34, b: 8, pad: 2 },
    modebar: { bgcolor: 'rgba(0,0,0,0)', color: style('--quiet'), activecolor: style('--accent') }, hovermode: 'closest', showlegend: false,
    hoverlabel: { bgcolor: style('--raised'), bordercolor: style('--rule'), font: { color: style('--ink') }, align: 'left' },
    dragmode: matchMedia('(pointer: coarse)').matches ? false : 'zoom',
    ...more, xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
  };
}
// Named one by one: of the buttons that plotly shows by itself one would send the figure away.
const CONFIG = {
  displaylogo: false,
  modeBarButtons: [['toImage', 'zoom2d', 'pan2d', 'zoomIn2d', 'zoomOut2d', 'resetScale2d']],
};

function describe(figure) {
  const said = figure.table.slice(0, 8).map(([line, found]) => {
    const value = figure.best(...found.map(p => p.y)), p = found.find(q => q.y === value);
    return `${line.label}: ${figure.word} ${figure.show(value)} at ${figure.row(p.x)}`;
  });
  const more = figure.table.length > 8 ? ` and ${figure.table.length - 8} more` : '';
  return `${said.join('; ')}${more}.`;
}

// All figures are decided on before any is drawn: how wide one is depends on which others show.
function drawFigures(rows) {
  const made = Object.entries(FIGURES).map(([name, make]) => [document.getElementById(name), make(rows), name]);
  for (const [box, figure] of made) box.hidden = !figure;
  for (const [box, figure, name] of made) if (figure) drawFigure(box, figure, name);
}

// A figure follows its box, whatever changed that.
const fitting = new ResizeObserver(entries => {
  for (const { target } of entries) if (target.data && target.clientWidth) Plotly.Plots.resize(target);
});

function draw(canvas, traces, shape) {
  Plotly.react(canvas, traces, layout(shape), CONFIG);
  fitting.observe(canvas);
}

function drawFigure(box, figure, name) {
  const canvas = box.querySelector('.canvas');
  canvas.setAttribute('aria-label', `${box.querySelector('h3').textContent}. ${describe(figure)}`);
  const notes = [figure.note ?? ''];
  if (figure.all > figure.drawn.length) notes.push(`${figure.drawn.length} of ${figure.all} series are drawn; the filter chooses.`);
  const merged = figure.table.some(([, found]) => found.some(p => p.rows && p.rows.length > 1 && name !== 'iterations'));
  if (merged) notes.push('Several rows of one point are drawn as their median, bands as the hull of their intervals.');
  const drawn = figure.table.flatMap(([, found]) => found.filter(p => p.rows));
  if (figure.drawn.some(line => !line.bright)) notes.push('Dimmed: neither among the fastest nor the library; with fewer algorithms, by the filter, all are bright.');
  if (drawn.some(p => p.low != null && isOpen(p.low, p.high))) notes.push('A point without a band or bar: the ends of its interval are a factor of 100 apart or more.');
  if (drawn.some(crowded)) notes.push('Hollow marks: ranks shared cores, and times include waiting for one.');
  if (figure.table.some(([, found]) => found.some(p => p.thinned))) notes.push('Neighbouring sizes are drawn as one point.');
  box.querySelector('.said').textContent = notes.filter(Boolean).join(' ');
  draw(canvas, figure.traces, { xaxis: figure.x, yaxis: figure.y });
  keys(box.querySelector('.keys'), canvas, figure.traces);
  const more = box.querySelector('details');
  more.ontoggle = () => { if (more.open) numbers(more, figure); };
  if (more.open) numbers(more, figure);
}

const STROKES = { dash: '6 4', dot: '2 3', dashdot: '6 3 2 3', longdash: '10 4', longdashdot: '10 3 2 3' };
// The marks as polygons: corners, the angle of the first (degrees), and how far out every second one is.
const SHAPES = {
  circle: [24, 0], square: [4, 45], diamond: [4, 0], 'triangle-up': [3, 0], 'triangle-down': [3, 180],
  cross: [8, 0, 0.4], x: [8, 45, 0.4], star: [10, 0, 0.4], 'triangle-left': [3, -90], 'triangle-right': [3, 90],
  pentagon: [5, 0], hexagon: [6, 0], 'diamond-tall': [4, 0, 0.5], hexagon2: [6, 30], octagon: [8, 22.5],
};

function polygon([corners, first, inner = 1]) {
  return Array.from({ length: corners }, (_, n) => {
    const angle = (first + (360 * n) / corners) * (Math.PI / 180), out = n % 2 ? 5 * inner : 5;
    return `${16 + out * Math.sin(angle)},${6 - out * Math.cos(angle)}`;
  }).join(' ');
}

function keyMark(trace) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  const add = (name, attributes) => {
    const part = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
    svg.append(part);
  };
  add('line', { x1: 0, x2: 32, y1: 6, y2: 6, stroke: trace.line.color, 'stroke-width': 2, 'stroke-dasharray': STROKES[trace.line.dash] ?? '' });
  svg.setAttribute('aria-hidden', 'true');
  svg.setAttribute('opacity', trace.opacity ?? 1);
  const shape = SHAPES[String([trace.marker?.symbol].flat()[0]).replace('-open', '')];
  if (shape && trace.mode !== 'lines') add('polygon', { points: polygon(shape), fill: trace.line.color });
  return svg;
}

// What a figure's lines are, below it: plotly's own legend would take the figure's room. Bounds come
// first, then what is bright; a key shows its line, or hides it.
function keys(list, canvas, traces) {
  const named = traces.map((trace, n) => [trace, n]).filter(([trace]) => trace.showlegend !== false);
  const rank = trace => (trace.legendgroup === BOUNDS ? 2 : trace.opacity ?? 1);
  named.sort(([a], [b]) => rank(b) - rank(a));
  list.replaceChildren(...named.map(([trace, at]) => {
    const members = traces.flatMap((other, n) => (n === at || other.legendgroup === trace.legendgroup ? [n] : []));
    const text = element('span', {});
    text.textContent = unplain(trace.name);
    const key = element('button', { type: 'button', 'aria-pressed': 'true' }, keyMark(trace), text);
    key.addEventListener('click', () => {
      const on = key.getAttribute('aria-pressed') !== 'true';
      key.setAttribute('aria-pressed', String(on));
      Plotly.restyle(canvas, { visible: on }, members);
    });
    return element('li', {}, key);
  }));
}

// The numbers of a figure: a row an x, a column a series.
function numbers(box, figure) {
  const xs = distinct(figure.table.flatMap(([, found]) => found.map(p => p.x))).sort(ascending);
  const at = figure.table.map(([, found]) => new Map(found.map(p => [p.x, p.y])));
  const head = element('tr', {}, ...[figure.head, ...figure.table.map(([line]) => line.label)].map(text => element('th', { scope: 'col' }, text)));
  const body = xs.map(x => element('tr', {}, element('th', { scope: 'row' }, figure.row(x)),
    ...at.map(values => element('td', {}, values.has(x) ? figure.show(values.get(x)) : ''))));
  const title = box.closest('figure').querySelector('h3').textContent, scroll = box.querySelector('.scroll');
  scroll.setAttribute('aria-label', `${title}: numbers`);
  scroll.replaceChildren(element('table', {}, element('caption', {}, title), element('thead', {}, head), element('tbody', {}, ...body)));
}

function drawMatrices() {
  for (const matrix of data.matrices) {
    const names = matrix.ids.map(plain);
    draw(document.getElementById(`matrix-${matrix.name}`), [{
      type: 'heatmap', z: matrix.values, x: names, y: names, hoverinfo: 'text', text: matrix.hover, xgap: 1, ygap: 1,
      colorscale: 'Viridis', reversescale: matrix.better === 'less', hoverongaps: false,
      colorbar: { title: { text: matrix.unit }, thickness: 12, outlinewidth: 0 },
    }], {
      showlegend: false, xaxis: { type: 'category', title: { text: 'to' }, showgrid: false },
      yaxis: { type: 'category', autorange: 'reversed', title: { text: 'from' }, showgrid: false },
    });
  }
}
