package delaymq.load;

import java.util.HashMap;
import java.util.Map;

/** The `name=value` words of one command. */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] words, int from) {
        for (int i = from; i < words.length; i++) {
            int equals = words[i].indexOf('=');
            if (equals < 1) {
                throw new IllegalArgumentException("not name=value: " + words[i]);
            }
            values.put(words[i].substring(0, equals), words[i].substring(equals + 1));
        }
    }

    boolean has(String name) {
        return values.containsKey(name);
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing option: " + name);
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return has(name) ? Integer.parseInt(text(name)) : otherwise;
    }

    long longNumber(String name, long otherwise) {
        return has(name) ? Long.parseLong(text(name)) : otherwise;
    }

    double decimal(String name, double otherwise) {
        return has(name) ? Double.parseDouble(text(name)) : otherwise;
    }

    int[] numbers(String name) {
        if (!has(name) || text(name).isEmpty()) {
            return new int[0];
        }
        String[] parts = text(name).split(",");
        int[] out = new int[parts.length];
        for (int i = 0; i < parts.length; i++) {
            out[i] = Integer.parseInt(parts[i]);
        }
        return out;
    }
}
