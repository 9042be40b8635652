package delaymq.load;

/** The longest time between two successive events, in System.nanoTime. */
final class Gaps {
    private boolean isBegun;
    private long latestNanos;
    private long longestNanos;

    /** Adds an event; the order of concurrent events does not matter. */
    synchronized void next(long nanos) {
        if (isBegun) {
            longestNanos = Math.max(longestNanos, nanos - latestNanos);
            latestNanos = Math.max(latestNanos, nanos);
        } else {
            latestNanos = nanos;
            isBegun = true;
        }
    }

    synchronized double longestMs() {
        return longestNanos / 1e6;
    }
}
