// One crosshair and one brush for all charts over time of a page.
// All these charts have the same time axis, so a fraction of its length means the same time in each.
const CHARTS = '[class*="st-key-over-time-"]';
const PLOT = ".role-frame.root > g > path.background";
const LEAST_PX = 6;

export default function ({ parentElement, setTriggerValue }) {
    parentElement.stop?.abort();
    const stop = (parentElement.stop = new AbortController());
    const overlays = [];
    let start = null; // the fraction at which a drag began
    let startX = 0;
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
        if (isDrag) {
            const ends = [start, fraction(event, dragged)].sort((a, b) => a - b);
            setTriggerValue("brush", ends);
        }
        cancel();
    });
    listen("pointercancel", cancel);
    listen("scroll", cancel);
    listen("keydown", event => event.key === "Escape" && cancel());
    stop.signal.addEventListener("abort", clear);
    return () => stop.abort();
}
