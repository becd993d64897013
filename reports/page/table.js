// The table: every kept row can be reached, a part of them is in the document.

const AT_ONCE = 100;
const series = n => data.series[data.of[n]];
const figureColumn = (name, title, show, unit) => ({
  name, title, unit, number: true, value: n => data[name][n], text: n => show(data[name][n]),
});

// Bytes in units of the size, which is what algorithms differ in.
const ofSize = (name, title) => ({
  name, title, unit: 'x size', number: true,
  value: n => (data[name][n] === null || !data.size[n] ? null : data[name][n] / data.size[n]),
  text: n => (data[name][n] === null || !data.size[n] ? '' : String(+(data[name][n] / data.size[n]).toPrecision(4))),
});

// The figures first: a phone is as wide as four columns.
const COLUMNS = [
  { name: 'size', title: 'size', number: true, value: n => data.size[n], text: n => sizeText(data.size[n]) },
  { name: 'algorithm', title: 'algorithm', value: n => series(n).algorithm, text: n => marked(series(n)) },
  figureColumn('time', 'time', seconds),
  figureColumn('busbw', 'busbw', rate, 'GB/s'),
  ...data.metrics.map(m => figureColumn(m.column, m.name, metricText(m), m.unit)),
  { name: 'interval', title: '95 %', number: true, value: n => (data.high[n] === null || !data.time[n] ? null : (data.high[n] - data.low[n]) / data.time[n]), text: n => intervalText(data.low[n], data.high[n], data.time[n]) },
  { name: 'share', title: '% of limit', number: true, value: n => (data.bound[n] ? data.busbw[n] / data.bound[n] : null), text: n => (data.bound[n] ? shareText(data.busbw[n] / data.bound[n]) : '') },
  figureColumn('library', 'library takes', v => (v === null ? '' : digits(v)), 'x'),
  { name: 'spark', title: 'distribution', value: n => data.spark[n], text: n => data.spark[n], plain: true },
  ...varying.map(name => ({
    name, title: DIMENSIONS[name].toLowerCase(), value: n => series(n)[name], text: n => word(name, series(n)[name]),
  })),
  figureColumn('perCore', 'ranks per core', v => (v === null ? '' : digits(v))),
  ofSize('sent', 'busiest port out'), ofSize('received', 'busiest port in'), ofSize('total', 'all links'),
  figureColumn('algbw', 'algbw', rate, 'GB/s'),
  figureColumn('min', 'min', optional), figureColumn('p99', 'p99', optional), figureColumn('max', 'max', optional),
  figureColumn('cv', 'cv', percent), figureColumn('n', 'n', v => (v === null ? '' : String(v))),
  figureColumn('wrong', 'wrong', v => (v === null ? '' : String(v))),
  figureColumn('energy', 'energy per operation', v => (v === null ? '' : digits(v)), 'J'),
  figureColumn('clock', 'memory clock', v => (v === null ? '' : (v / 1e6).toFixed(0)), 'MHz'),
  { name: 'skipped', title: 'not measured', value: n => data.skipped[n], text: n => data.skipped[n] },
].filter(column => data.of.some((_, n) => ![null, '', undefined].includes(column.value(n))));

// What all kept rows share stands in the line above the table and needs no column.
const shared = (column, rows) => varying.includes(column.name) && rows.length > 1
  && rows.every(n => column.value(n) === column.value(rows[0]));
let columns = [];

function fillHead(rows) {
  const kept = COLUMNS.filter(column => !shared(column, rows));
  if (kept.length === columns.length && kept.every((column, at) => column === columns[at])) return;
  columns = kept;
  const cells = columns.map(column => {
    const words = column.unit ? `${column.title} (${column.unit})` : column.title;
    const cell = element('th', { scope: 'col', class: column.number ? 'number' : '' });
    if (column.plain) { cell.append(words); return cell; }
    const button = element('button', { type: 'button' }, words);
    button.addEventListener('click', () => {
      const again = state.sort?.[0] === column.name;
      state.sort = again ? [column.name, -state.sort[1]] : [column.name, 1];
      fillTable(keptRows());
    });
    cell.append(button);
    return cell;
  });
  document.querySelector('#table thead').replaceChildren(element('tr', {}, ...cells));
}

function sorted(rows) {
  if (!state.sort) return rows;
  const [name, sign] = state.sort, column = COLUMNS.find(c => c.name === name);
  const missing = value => value === null || value === '' || value === undefined;
  const values = new Map(rows.map(n => [n, column.value(n)]));
  return rows.toSorted((a, b) => {
    const x = values.get(a), y = values.get(b);
    if (missing(x) || missing(y)) return missing(x) - missing(y); // what is missing comes last
    return sign * ascending(x, y) || a - b;
  });
}

function rowElement(n) {
  return element('tr', {}, ...columns.map((column, at) => {
    const attributes = { class: [column.number ? 'number' : '', column.name === 'spark' ? 'spark' : ''].join(' ').trim() };
    return at ? element('td', attributes, column.text(n)) : element('th', { ...attributes, scope: 'row' }, column.text(n));
  }));
}

function fillTable(rows) {
  fillHead(rows);
  const ordered = sorted(rows), body = document.querySelector('#table tbody'), more = document.getElementById('more');
  document.querySelectorAll('#table th[scope=col]').forEach((cell, at) => {
    if (columns[at].plain) return;
    const mine = state.sort?.[0] === columns[at].name;
    cell.setAttribute('aria-sort', !mine ? 'none' : state.sort[1] > 0 ? 'ascending' : 'descending');
  });
  const show = upTo => {
    const from = body.rows.length;
    body.append(...ordered.slice(from, upTo).map(rowElement));
    more.hidden = upTo >= ordered.length;
    more.textContent = `Show more rows (${(ordered.length - Math.min(upTo, ordered.length)).toLocaleString('en')} left)`;
  };
  body.replaceChildren();
  show(AT_ONCE);
  more.onclick = () => {
    const next = body.rows.length;
    show(next + AT_ONCE * 5);
    const first = body.rows[next]?.cells[0]; // reading goes on where the new rows begin
    if (first) { first.tabIndex = -1; first.focus({ preventScroll: true }); }
  };
}
