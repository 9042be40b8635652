package delaymq.load;

import java.util.Arrays;

/** Collects durations in nanoseconds; one writer at a time. */
final class Durations {
    private long[] values = new long[1 << 12];
    private int count;

    synchronized void add(long nanos) {
        if (count == values.length) {
            values = Arrays.copyOf(values, count * 2);
        }
        values[count++] = nanos;
    }

    synchronized int count() {
        return count;
    }

    /** The p-th percentile in microseconds, 0 without values. */
    synchronized double micros(double p) {
        if (count == 0) {
            return 0;
        }
        long[] sorted = Arrays.copyOf(values, count);
        Arrays.sort(sorted);
        return sorted[(int) Math.min(count - 1, Math.round(p / 100.0 * (count - 1)))] / 1000.0;
    }

    synchronized void addAll(Durations other) {
        for (int i = 0; i < other.count; i++) {
            add(other.values[i]);
        }
    }
}
