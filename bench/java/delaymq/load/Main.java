package delaymq.load;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;

/**
 * A load program around RocketMQ's own client, driven by lines on its standard input.
 *
 * Input: `id command name=value …`; output: one JSON object a line, {"id":…,"ok":true,"result":{…}} or
 * {"id":…,"ok":false,"error":…}. Each command runs in a separate thread. The program exits at the end of its input.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream replies = System.out;
        // Output of the client must not be mixed with the replies.
        System.setOut(System.err);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.trim().split(" +");
            if (words.length < 2) {
                continue;
            }
            Thread thread = new Thread(() -> {
                String reply = answer(words);
                synchronized (replies) {
                    replies.println(reply);
                    replies.flush();
                }
            }, "command-" + words[0]);
            thread.setDaemon(true);
            thread.start();
        }
        // Clients' threads are not daemon threads; the caller that closed the input does not wait for them.
        Runtime.getRuntime().halt(0);
    }

    private static String answer(String[] words) {
        Reply reply = new Reply().put("id", words[0]);
        try {
            return reply.put("ok", true).put("result", run(words[1], new Options(words, 2))).toString();
        } catch (Throwable e) {
            StringWriter trace = new StringWriter();
            e.printStackTrace(new PrintWriter(trace));
            System.err.println(trace);
            return new Reply().put("id", words[0]).put("ok", false).put("error", e.toString()).toString();
        }
    }

    private static Reply run(String command, Options options) throws Exception {
        return switch (command) {
            case "send" -> Sending.run(options);
            case "first-send" -> FirstSend.run(options);
            case "consume" -> Receiving.consume(options);
            case "watch" -> Receiving.watch(options);
            case "latency" -> Receiving.latency(options);
            case "held" -> Reading.held(options);
            case "drain" -> Reading.drain(options);
            case "connect" -> {
                Producers.get(options);
                yield new Reply().put("connected", true);
            }
            case "stop" -> {
                Sending.stop();
                yield new Reply().put("stopped", true);
            }
            case "forget" -> {
                Producers.forget(options.text("namesrv"));
                Reading.forget(options.text("namesrv"));
                yield new Reply().put("forgotten", true);
            }
            default -> throw new IllegalArgumentException("unknown command: " + command);
        };
    }
}
