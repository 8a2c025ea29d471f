// One crosshair and one brush for all charts over time of a page, and the keyboard for all charts whose marks open streams:
// Tab enters a chart, the arrow keys move between its marks, Enter clicks, and with Shift the arrow keys select a time range.
// All these charts have the same time axis, so a fraction of its length means the same time in each.
const CHARTS = '[class*="st-key-over-time-"]';
const PLOT = ".role-frame.root > g > path.background";
const OPENS = '[class*="-opens-height-"]';
const MARKS = ":is(.mark-symbol, .mark-rect).role-mark > path[aria-label]";
const LEAST_PX = 6;
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const middle = mark => {
    const box = mark.getBoundingClientRect();
    return { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2, area: box.width * box.height };
};
// Streamlit and Vega receive what the mouse would send.
const send = (mark, ...types) => {
    const at = { ...middle(mark), bubbles: true };
    const target = document.elementFromPoint(at.clientX, at.clientY);
    for (const type of types) target?.dispatchEvent(new PointerEvent(type, at));
};
const neighbour = (mark, marks, [x, y]) => {
    const from = middle(mark);
    const distance = other => {
        const to = middle(other);
        const [dx, dy] = [to.clientX - from.clientX, to.clientY - from.clientY];
        const along = dx * x + dy * y;
        return along > 0.5 && to.area > 0 ? along + 2 * Math.abs(dx * y + dy * x) : Infinity;
    };
    const found = marks.map(other => [distance(other), other]).sort((a, b) => a[0] - b[0])[0];
    return found[0] < Infinity ? found[1] : mark;
};

export default function ({ parentElement, setTriggerValue }) {
    parentElement.stop?.abort();
    const stop = (parentElement.stop = new AbortController());
    const overlays = [];
    let start = null; // the fraction at which a drag began
    let startX = 0;
    let hasDragged = false;
    let isDrag = false;

    const plots = () =>
        [...document.querySelectorAll(CHARTS)]
            .map(chart => chart.querySelector(PLOT)?.getBoundingClientRect())
            .filter(plot => plot && plot.width > 0);
    const plotAt = event => {
        const chart = event.target.closest?.(CHARTS);
        const plot = chart?.querySelector(PLOT)?.getBoundingClientRect();
        const inside = plot && event.clientX >= plot.left && event.clientX <= plot.right
            && event.clientY >= plot.top && event.clientY <= plot.bottom;
        return inside ? plot : null;
    };
    const fraction = (event, plot) => Math.min(1, Math.max(0, (event.clientX - plot.left) / plot.width));
    const clear = () => overlays.splice(0).forEach(overlay => overlay.remove());

    // Draw the range from `a` to `b` on every chart. A range of length 0 is a line.
    const draw = (a, b) => {
        clear();
        for (const plot of plots()) {
            const overlay = document.createElement("div");
            overlay.className = a === b ? "time-crosshair" : "time-brush";
            Object.assign(overlay.style, {
                position: "fixed", pointerEvents: "none", zIndex: 50,
                left: `${plot.left + Math.min(a, b) * plot.width}px`, top: `${plot.top}px`,
                width: `${Math.max(1, Math.abs(b - a) * plot.width)}px`, height: `${plot.height}px`,
                background: a === b ? "#8d99a3" : "#8d99a344",
            });
            document.body.append(overlay);
            overlays.push(overlay);
        }
    };
    const cancel = () => {
        start = null;
        isDrag = false;
        clear();
    };
    let dragged = null; // the plot in which a drag began

    const listen = (name, handler) =>
        document.addEventListener(name, handler, { capture: true, signal: stop.signal });
    listen("pointerdown", event => {
        const plot = event.isPrimary && event.button === 0 ? plotAt(event) : null;
        if (!plot) return;
        [start, startX, dragged] = [fraction(event, plot), event.clientX, plot];
        if (event.pointerType === "mouse") event.preventDefault(); // no selection of text
    });
    listen("pointermove", event => {
        if (start !== null) {
            isDrag ||= Math.abs(event.clientX - startX) >= LEAST_PX;
            if (isDrag) draw(start, fraction(event, dragged));
            return;
        }
        const plot = plotAt(event);
        if (!plot) return clear();
        const at = fraction(event, plot);
        draw(at, at);
    });
    listen("pointerup", event => {
        hasDragged = isDrag;
        if (isDrag) {
            const ends = [start, fraction(event, dragged)].sort((a, b) => a - b);
            setTriggerValue("brush", ends);
        }
        cancel();
    });
    listen("click", event => {
        if (hasDragged) event.stopPropagation(); // a drag is no click on the mark where it ends
        hasDragged = false;
    });
    listen("pointercancel", cancel);
    listen("scroll", cancel);
    listen("keydown", event => event.key === "Escape" && cancel());

    let focused = {}; // class of the chart and number of the mark that has the focus, because a refresh draws other marks
    let anchor = null; // the fraction at which a time range begins that the keyboard selects
    let end = null;
    const marksOf = chart => [...chart.querySelectorAll(MARKS)];
    const focus = (marks, mark) => {
        marks.forEach(other => other.removeAttribute("tabindex"));
        mark.setAttribute("tabindex", 0);
        mark.focus();
    };
    listen("focusin", event => {
        const chart = event.target.closest?.(OPENS);
        const number = chart ? marksOf(chart).indexOf(event.target) : -1;
        focused = number < 0 ? {} : { chart: chart.className, number };
        if (number >= 0) send(event.target, "pointerover", "pointermove"); // the tooltip
    });
    listen("keydown", event => {
        const chart = event.target.closest?.(OPENS);
        const marks = chart ? marksOf(chart) : [];
        if (!marks.includes(event.target)) return;
        if (event.key === "Enter") send(event.target, "click");
        const step = STEPS[event.key];
        if (!step) return;
        event.preventDefault();
        const next = neighbour(event.target, marks, step);
        focus(marks, next);
        const plot = event.shiftKey && chart.matches(CHARTS) && chart.querySelector(PLOT)?.getBoundingClientRect();
        if (!plot) return;
        anchor ??= fraction(middle(event.target), plot);
        end = fraction(middle(next), plot);
        draw(anchor, end);
    });
    listen("keyup", event => {
        if (event.key !== "Shift" || anchor === null) return;
        if (anchor !== end) setTriggerValue("brush", [anchor, end].sort((a, b) => a - b));
        anchor = null;
        clear();
    });
    // The first mark of each chart can have the focus, and the mark that has it keeps it when the chart is drawn again.
    let waits = 0;
    const prepare = () => {
        waits = 0;
        for (const chart of document.querySelectorAll(OPENS)) {
            if (chart.querySelector("path[tabindex]")) continue;
            const marks = marksOf(chart);
            if (!marks.length) continue;
            const lost = focused.chart === chart.className && document.activeElement === document.body;
            if (lost) focus(marks, marks[Math.min(focused.number, marks.length - 1)]);
            else marks[0].setAttribute("tabindex", 0);
        }
    };
    const drawn = new MutationObserver(() => { waits ||= requestAnimationFrame(prepare); });
    drawn.observe(document.body, { childList: true, subtree: true });
    prepare();
    stop.signal.addEventListener("abort", () => drawn.disconnect());
    stop.signal.addEventListener("abort", clear);
    return () => stop.abort();
}
