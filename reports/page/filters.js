// The filter: native controls, so that keyboards and screen readers need nothing of ours.

function select(label, options, chosen, change) {
  const box = element('select', {});
  for (const [value, name] of options) box.append(element('option', { value: String(value) }, name));
  box.selectedIndex = Math.max(0, options.findIndex(([value]) => value === chosen));
  box.addEventListener('change', () => change(options[box.selectedIndex][0]));
  return element('label', {}, element('span', {}, label), box);
}

function checkbox(label, checked, change, mark) {
  const box = element('input', { type: 'checkbox' });
  box.checked = checked;
  box.addEventListener('change', () => change(box.checked));
  const made = element('label', { class: 'check' }, box);
  if (mark !== undefined) {
    const swatch = element('span', { class: 'swatch', 'aria-hidden': 'true' });
    swatch.style.setProperty('--swatch', `var(--series-${mark})`);
    made.append(swatch);
  }
  made.append(element('span', {}, label));
  return made;
}

function startChoices() {
  const first = data.series[0].collective, known = data.of.map((s, n) => [data.series[s], data.crowded[n]]).filter(([s]) => s.collective === first && s.ranks !== null);
  const own = known.filter(([, crowded]) => !crowded), ranked = (own.length ? own : known).map(([s]) => s.ranks);
  for (const name of varying) {
    const values = distinct(data.series.map(s => s[name])).sort(ascending);
    if (name === 'collective') state.chosen[name] = first;
    if (name === 'placement' && values.includes('out')) state.chosen[name] = 'out';
    if (name === 'ranks') state.chosen[name] = commonest(ranked);
  }
}

function fillFilters(form, changed) {
  const set = (key, value) => { state[key] = value; changed(); };
  form.replaceChildren();
  for (const name of varying) {
    const values = distinct(data.series.map(s => s[name])).sort(ascending);
    form.append(select(DIMENSIONS[name],
      [[undefined, 'all'], ...values.map(v => [v, word(name, v)])], state.chosen[name],
      value => { state.chosen[name] = value; changed(); }));
  }
  if (allSizes.length > 1) {
    const sizes = allSizes.map(size => [size, sizeText(size)]);
    form.append(
      select('Sizes from', [[null, 'least'], ...sizes], state.from, v => set('from', v)),
      select('Sizes to', [[null, 'largest'], ...sizes.toReversed()], state.to, v => set('to', v)),
      select('Distribution and scaling at', [[null, 'best known size'], ...sizes], state.at,
        v => set('at', v)));
  }
  const search = element('input', { type: 'search', autocomplete: 'off', spellcheck: 'false' });
  search.value = state.words;
  search.addEventListener('input', () => set('words', search.value));
  form.append(element('label', {}, element('span', {}, 'Contains'), search));
  const marks = new Map(data.series.map(s => [s.name, s.colour]));
  if (algorithms.length > 1 && algorithms.length <= MOST_SERIES) {
    form.append(element('fieldset', {}, element('legend', {}, 'Algorithms'),
      ...algorithms.map(name => checkbox(name, !state.hidden.has(name), on => {
        if (on) state.hidden.delete(name); else state.hidden.add(name);
        changed();
      }, marks.get(name)))));
  }
  const switches = [];
  if (data.series.some(s => s.fit)) switches.push(checkbox('Fitted lines', state.fits, on => set('fits', on)));
  if (data.bound.some(Boolean)) switches.push(checkbox('Limits', state.bounds, on => set('bounds', on)));
  if (switches.length) form.append(element('fieldset', {}, element('legend', {}, 'Lines'), ...switches));
  const all = element('button', { type: 'button' }, 'Show everything');
  all.addEventListener('click', () => {
    Object.assign(state, { chosen: {}, words: '', from: null, to: null, at: null });
    state.hidden.clear();
    fillFilters(form, changed);
    form.querySelector('button').focus();
    changed();
  });
  form.append(all);
  form.addEventListener('submit', event => event.preventDefault());
}
