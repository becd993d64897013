"""The runs of our own records: an environment each, stated once or in every record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from reports.records.record import FORMAT
from reports.records.rows import Run


def check_format(document: Mapping[str, Any]) -> None:
    """Raise ValueError for a format that this version does not read."""
    form = document.get("format")
    if not isinstance(form, int) or not 1 <= form <= FORMAT:
        raise ValueError(f"format {form!r} is not one that this version reads (1 to {FORMAT})")


class Runs:
    """The runs of records: those of one environment share one, in order of appearance."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._environments: dict[str, Mapping[str, Any]] = {}
        self._named: dict[str, Run] = {}
        self._known: dict[str, Run] = {}

    def keep(self, document: Mapping[str, Any]) -> None:
        """Take the line of an environment. Raises ValueError when it cannot be read."""
        check_format(document)
        if not isinstance(document["environment"], dict):
            raise ValueError("the environment is no object")
        self._environments[str(document["run"])] = document["environment"]
        self._named.pop(str(document["run"]), None)

    def environment(self, document: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
        """The environment of a record, and a remark on it."""
        if "run" not in document:
            return document.get("environment", {}), ""
        name = str(document["run"])
        if name in self._environments:
            return self._environments[name], ""
        self._environments[name] = {}
        return {}, f"the line of run {name} is missing: nothing is known of its machine"

    def of(self, document: Mapping[str, Any]) -> tuple[Run, str]:
        """The run of a record, and a remark on it."""
        name = str(document.get("run", ""))
        if name in self._named:
            return self._named[name], ""
        environment, said = self.environment(document)
        key = json.dumps(environment, sort_keys=True)
        if key not in self._known:
            self._known[key] = self._made(str(document["collective"]), environment)
        if name:
            self._named[name] = self._known[key]
        return self._known[key], said

    def _made(self, collective: str, environment: Mapping[str, Any]) -> Run:
        if not isinstance(environment, dict):
            raise ValueError("the environment is no object")
        hosts = environment.get("hosts", ())
        devices = environment.get("devices") or [environment.get("cpu", "")]
        return Run(
            source=self._source,
            number=len(self._known),
            format="busbar",
            program=f"busbar {collective}",
            version=f"busbar {environment.get('busbar', '')}".strip(),
            library=str(environment.get("library", "")),
            hosts=tuple(map(str, hosts)) if isinstance(hosts, list) else (),
            devices=tuple(map(str, devices)) if isinstance(devices, list) else (),
            environment=environment,
        )
