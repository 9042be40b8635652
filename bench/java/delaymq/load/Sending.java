package delaymq.load;

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.ServiceState;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;

/**
 * Sends for `seconds`, or until `count` messages are acknowledged.
 *
 * mode=sync|async|batch|transaction (committed immediately), threads, size (body bytes), batch (messages per send),
 * window (unacknowledged async sends), rate (messages per second of all threads; 0: unlimited), levels (delay levels to
 * draw from), delays_ms (messages are due between these two delays after they are made), deliver_ms (due time of the
 * first message in ms since 1970) and step_ms (later by this for each further one), kinds (messages get a tag, T0 and so
 * on, and the properties kind and number in turn), retries (by the client after a failed attempt; default: 0), acks
 * (file with one line for each send: A or F, unique key, level, queue, queue offset or the error).
 *
 * longest_gap_ms, with the option gaps, is the longest time without a response that a message is stored, on the master at
 * least, from the start of the first send to the end.
 *
 * p50_us and p99_us are durations of synchronous sends, failed ones included; with a rate, from the time at which a send
 * was due.
 */
final class Sending {
    private static final int PAUSE_AFTER_FAILURE_MS = 20;
    /** The client of 4.9 has no method for due times. */
    private static final String DUE_PROPERTY = "TIMER_DELIVER_MS";
    private static final long FINISHED = Long.MIN_VALUE;
    /** Sends that started before this time stop; in System.nanoTime. */
    private static final AtomicLong STOPPED_NANOS = new AtomicLong(Long.MIN_VALUE);

    private final DefaultMQProducer producer;
    private final String mode;
    private final String topic;
    private final byte[] body;
    private final int batch;
    private final int threads;
    private final double rate;
    private final int[] levels;
    private final int[] delaysMs;
    private final long deliverMs;
    private final long stepMs;
    private final int kinds;
    private final AtomicLong made = new AtomicLong();
    private final long count;
    private final double seconds;
    private final double atMostSeconds;
    private final Semaphore window;
    private final BufferedWriter acks;

    private final AtomicLong claimed = new AtomicLong();
    private final AtomicLong acknowledged = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final Gaps gaps;
    private final Map<String, Integer> errors = new TreeMap<>();
    private final Durations durations = new Durations();
    private long startNanos;
    private long deadlineNanos;

    private Sending(Options options) throws Exception {
        producer = Producers.get(options);
        mode = options.text("mode", "sync");
        topic = options.text("topic");
        body = new byte[options.number("size", 100)];
        ThreadLocalRandom.current().nextBytes(body);
        batch = mode.equals("batch") ? options.number("batch", 32) : 1;
        threads = options.number("threads", 1);
        rate = options.decimal("rate", 0);
        levels = options.numbers("levels");
        delaysMs = options.numbers("delays_ms");
        deliverMs = options.longNumber("deliver_ms", 0);
        stepMs = options.longNumber("step_ms", 0);
        kinds = options.number("kinds", 0);
        count = options.longNumber("count", Long.MAX_VALUE);
        seconds = options.decimal("seconds", 0);
        atMostSeconds = options.decimal("at_most_seconds", 600);
        window = new Semaphore(options.number("window", 512));
        acks = options.has("acks") ? Files.newBufferedWriter(Path.of(options.text("acks"))) : null;
        gaps = options.has("gaps") ? new Gaps() : null;
        if (seconds <= 0 && count == Long.MAX_VALUE) {
            throw new IllegalArgumentException("send needs seconds or count");
        }
        if (delaysMs.length != 0 && (delaysMs.length != 2 || delaysMs[0] > delaysMs[1])) {
            throw new IllegalArgumentException("delays_ms needs the shortest and the longest delay");
        }
    }

    static Reply run(Options options) throws Exception {
        return new Sending(options).run();
    }

    /** Stops every running `send` and `watch`: outstanding requests are completed, and no further ones are sent. */
    static void stop() {
        STOPPED_NANOS.set(System.nanoTime());
    }

    /** Whether `stop` was called after this time in System.nanoTime. */
    static boolean isStopped(long sinceNanos) {
        return sinceNanos <= STOPPED_NANOS.get();
    }

    private Reply run() throws Exception {
        startNanos = System.nanoTime();
        noteGap();
        deadlineNanos = startNanos + (long) ((seconds > 0 ? seconds : atMostSeconds) * 1e9);
        long startMs = System.currentTimeMillis();
        List<Thread> workers = new ArrayList<>();
        int inFlight = window.availablePermits();
        for (int i = 0; i < threads; i++) {
            Thread worker = new Thread(this::work, "send-" + i);
            worker.start();
            workers.add(worker);
        }
        for (Thread worker : workers) {
            worker.join();
        }
        noteGap();
        // Responses to asynchronous sends arrive later; the client fails each of them at its timeout.
        window.tryAcquire(inFlight, 10, TimeUnit.SECONDS);
        double elapsed = (System.nanoTime() - startNanos) / 1e9;
        if (acks != null) {
            synchronized (acks) {
                acks.close();
            }
        }
        synchronized (errors) {
            return new Reply()
                .put("acknowledged", acknowledged.get())
                .put("failed", failed.get())
                .put("elapsed_s", elapsed)
                .put("rate", acknowledged.get() / elapsed)
                .put("longest_gap_ms", gaps == null ? 0 : gaps.longestMs())
                .put("p50_us", durations.micros(50))
                .put("p99_us", durations.micros(99))
                .put("start_ms", startMs)
                .put("end_ms", System.currentTimeMillis())
                .put("errors", errors);
        }
    }

    private void work() {
        Durations own = new Durations();
        for (long due = claim(); due != FINISHED; due = claim()) {
            if (mode.equals("async")) {
                sendAsync();
            } else {
                sendAndWait();
                own.add(System.nanoTime() - due);
            }
        }
        durations.addAll(own);
    }

    /**
     * Returns the time from which the caller's next send counts, in System.nanoTime: now or, if a rate is set, the time
     * at which it was due, after waiting for it. FINISHED if the caller must not send.
     */
    private long claim() {
        long ticket = claimed.getAndAdd(batch);
        while (count != Long.MAX_VALUE && ticket >= count) {
            // Failed sends return their ticket, so wait until no ticket can be returned.
            claimed.addAndGet(-batch);
            if (acknowledged.get() >= count || System.nanoTime() > deadlineNanos || !isOpen()) {
                return FINISHED;
            }
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(1));
            ticket = claimed.getAndAdd(batch);
        }
        long now = System.nanoTime();
        long due = rate > 0 ? startNanos + (long) (ticket * 1e9 / rate) : now;
        for (; now < due; now = System.nanoTime()) {
            LockSupport.parkNanos(due - now);
        }
        return now <= deadlineNanos && isOpen() ? due : FINISHED;
    }

    /** Returns false after `stop`, or after `forget` has shut down the producer: no more sends are expected then. */
    @SuppressWarnings("deprecation")
    private boolean isOpen() {
        return !isStopped(startNanos) && producer.getDefaultMQProducerImpl().getServiceState() == ServiceState.RUNNING;
    }

    private Message message() {
        Message message = new Message(topic, body);
        long number = made.getAndIncrement();
        if (levels.length > 0) {
            message.setDelayTimeLevel(levels[ThreadLocalRandom.current().nextInt(levels.length)]);
        }
        if (delaysMs.length > 0) {
            long delayMs = ThreadLocalRandom.current().nextLong(delaysMs[0], delaysMs[1] + 1L);
            message.putUserProperty(DUE_PROPERTY, Long.toString(System.currentTimeMillis() + delayMs));
        } else if (deliverMs > 0) {
            message.putUserProperty(DUE_PROPERTY, Long.toString(deliverMs + number * stepMs));
        }
        if (kinds > 0) {
            message.setTags("T" + number % kinds);
            message.putUserProperty("kind", Long.toString(number % kinds));
            message.putUserProperty("number", Long.toString(number));
        }
        MessageClientIDSetter.setUniqID(message);
        return message;
    }

    private void sendAndWait() {
        List<Message> messages = new ArrayList<>(batch);
        for (int i = 0; i < batch; i++) {
            messages.add(message());
        }
        try {
            SendResult result = switch (mode) {
                case "batch" -> producer.send(messages);
                case "transaction" -> producer.sendMessageInTransaction(messages.get(0), null);
                default -> producer.send(messages.get(0));
            };
            settle(messages, result);
        } catch (Exception e) {
            fail(messages, e);
            pause();
        }
    }

    private void sendAsync() {
        List<Message> messages = List.of(message());
        try {
            window.acquire();
            producer.send(messages.get(0), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    settle(messages, result);
                    window.release();
                }

                @Override
                public void onException(Throwable e) {
                    fail(messages, e);
                    window.release();
                }
            });
        } catch (Exception e) {
            window.release();
            fail(messages, e);
            pause();
        }
    }

    private void settle(List<Message> messages, SendResult result) {
        if (result.getSendStatus() != SendStatus.FLUSH_DISK_TIMEOUT) {
            noteGap();
        }
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            fail(messages, new IllegalStateException(result.getSendStatus().name()));
            return;
        }
        log("A", messages, result.getMessageQueue().getQueueId() + " " + result.getQueueOffset());
        acknowledged.addAndGet(messages.size());
    }

    private void noteGap() {
        if (gaps != null) {
            gaps.next(System.nanoTime());
        }
    }

    private void fail(List<Message> messages, Throwable e) {
        String what = e.getClass().getSimpleName();
        log("F", messages, what);
        failed.addAndGet(messages.size());
        if (count != Long.MAX_VALUE) {
            claimed.addAndGet(-messages.size());
        }
        String text = what + ": " + String.valueOf(e.getMessage()).lines().findFirst().orElse("");
        synchronized (errors) {
            // Addresses and times differ in every text, so only the first few kinds are kept in full.
            errors.merge(errors.size() < 8 || errors.containsKey(text) ? text : "other", 1, Integer::sum);
        }
    }

    private void log(String outcome, List<Message> messages, String detail) {
        if (acks == null) {
            return;
        }
        synchronized (acks) {
            try {
                for (Message message : messages) {
                    acks.write(outcome + " " + MessageClientIDSetter.getUniqID(message) + " "
                        + message.getDelayTimeLevel() + " " + detail + "\n");
                }
            } catch (IOException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    private static void pause() {
        LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(PAUSE_AFTER_FAILURE_MS));
    }
}
