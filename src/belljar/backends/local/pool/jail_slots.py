"""Slots for jails: a number, a uid and a cgroup each, which outlive the namespaces that come and go in them."""

from __future__ import annotations

from belljar.jail import policy
from belljar.jail.cgroups import Cgroups, JailCgroup

JAILS_MAX = 1024


class JailSlot:
    """The number, uid and cgroup of a jail."""

    def __init__(self, number: int, cgroup: JailCgroup | None, first_uid: int = policy.GUEST_UID_FIRST) -> None:
        self.number = number
        self.uid = first_uid + number
        self.cgroup = cgroup


class JailSlots:
    """Every slot of a sandbox. Free ones beyond `kept` are given up, so that bursts of kills leave no trace."""

    def __init__(
        self, cgroups: Cgroups | None, changes_uid: bool, kept: int, first_uid: int = policy.GUEST_UID_FIRST
    ) -> None:
        self.first_uid = first_uid
        self._cgroups = cgroups
        self._changes_uid = changes_uid
        self._kept = kept
        self._free: list[JailSlot] = []
        self._made: dict[int, JailSlot] = {}

    def take(self) -> JailSlot | None:
        """A free slot, or None if all are in use."""
        for index, jail_slot in enumerate(self._free):
            if jail_slot.cgroup is not None and jail_slot.cgroup.is_empty() and not jail_slot.cgroup.is_pristine():
                jail_slot.cgroup.reclaim()
            if jail_slot.cgroup is None or jail_slot.cgroup.is_pristine():
                return self._free.pop(index)
        if len(self._made) >= JAILS_MAX:
            return None
        number = next(number for number in range(JAILS_MAX) if number not in self._made)
        jail_slot = JailSlot(number, self._cgroups.jail(number) if self._cgroups else None, self.first_uid)
        if not self._changes_uid:
            jail_slot.uid = policy.GUEST_UID_FIRST
        self._made[number] = jail_slot
        return jail_slot

    def give_back(self, jail_slot: JailSlot) -> None:
        """Take back a slot whose namespaces are gone."""
        self._free.append(jail_slot)
        for each in self._free[: -self._kept]:
            if each.cgroup is None or each.cgroup.remove():
                self._free.remove(each)
                del self._made[each.number]

    def close(self) -> None:
        """Close the files of every cgroup."""
        for jail_slot in self._made.values():
            if jail_slot.cgroup is not None:
                jail_slot.cgroup.close()
        self._made.clear()
        self._free.clear()
