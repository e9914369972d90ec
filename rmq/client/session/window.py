"""Window: the number of sends in flight to a broker, and the line of sends that wait for room.

However many sends an application begins at once, a broker gets only as many as fit into its window; so each
waits for its response about as long as a single send would, and the encoded bytes are bounded. The other
sends stand in line, first come first served.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Container
from itertools import islice
from typing import Final

import anyio
from attrs import define

from rmq.errors import WindowFull
from rmq.remoting.loop import Waiter, current_loop

LOOK: Final = 16
"""Number of first sends in each line that may move to a broker with room."""


@define(eq=False)
class _Place:
    """A place in the line."""

    waiter: Waiter
    brokers: Collection[str]
    """Other brokers to which the send may go."""
    is_inside: bool = False


class Window:
    """Room for `size` sends to `broker`. Each `enter` needs a `leave`."""

    __slots__ = ("_line", "_new_waiter", "_windows", "broker", "room", "size")

    def __init__(self, broker: str, windows: Windows) -> None:
        self.broker = broker
        self.size = windows.size
        self.room = windows.size
        """Free places; 0 while a send stands in line."""
        self._windows = windows
        self._new_waiter: Callable[[], Waiter] = current_loop().waiter
        # Ordered, because many may be cancelled together, each from the middle of the line.
        self._line: OrderedDict[_Place, None] = OrderedDict()

    def __len__(self) -> int:
        """Number of sends in line."""
        return len(self._line)

    async def enter(self, seconds: float, brokers: Collection[str] = ()) -> bool:
        """Enter as soon as the window has room, within `seconds`. False: not inside, because a broker of
        `brokers` may be a better choice. Raises WindowFull. Cancelled: not inside."""
        if self.room:
            self.room -= 1
            return True
        place = _Place(self._new_waiter(), brokers)
        self._line[place] = None
        self._windows.begin_waiting()
        try:
            with anyio.move_on_after(seconds):
                await place.waiter.wait()
        except BaseException:
            if place.is_inside:  # let in and cancelled at the same moment
                self.leave()
            raise
        finally:
            self._windows.end_waiting()
            is_late = self._line.pop(place, place) is None
        if is_late:
            raise WindowFull(self.broker, self.size, seconds)
        return place.is_inside

    def leave(self) -> None:
        """Leave the window, and let the next send in."""
        if self._line:
            place, _ = self._line.popitem(last=False)
            place.is_inside = True
            place.waiter.resolve(None)
        else:
            self.room += 1
            if self._windows.waiting:
                self._windows.send_one_to(self.broker)

    def disperse(self) -> None:
        """Release the sends in line that may go to another broker."""
        for place in [place for place in self._line if place.brokers]:
            self._send_off(place)

    def send_one_to(self, broker: str) -> bool:
        """Let one of the first sends in line go to a broker that has room; return whether a send went."""
        found = next((place for place in islice(self._line, LOOK) if broker in place.brokers), None)
        if found is not None:
            self._send_off(found)
        return found is not None

    def _send_off(self, place: _Place) -> None:
        del self._line[place]
        place.waiter.resolve(None)


class Windows:
    """The windows of all brokers that a client sends to."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.waiting = 0
        """Number of sends in any line, or just released."""
        self._windows: dict[str, Window] = {}

    def begin_waiting(self) -> None:
        """Note that a send stands in a line."""
        self.waiting += 1

    def end_waiting(self) -> None:
        """Note that a send has left its line."""
        self.waiting -= 1

    def of(self, broker: str) -> Window:
        """The window of a broker."""
        window = self._windows.get(broker)
        if window is None:
            window = self._windows[broker] = Window(broker, self)
        return window

    def keep(self, brokers: Container[str]) -> None:
        """Forget all other brokers that no send goes to now."""
        for broker, window in [*self._windows.items()]:
            if broker not in brokers and window.room == window.size:
                del self._windows[broker]

    def full(self) -> list[str]:
        """The brokers that have no room now."""
        return [broker for broker, window in self._windows.items() if not window.room]

    def send_one_to(self, broker: str) -> None:
        """Offer the room of this broker to a send that waits for another broker."""
        any(window.send_one_to(broker) for window in self._windows.values() if len(window))
