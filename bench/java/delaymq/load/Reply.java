package delaymq.load;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** One JSON object of numbers, texts, lists and maps. */
final class Reply {
    private final Map<String, Object> fields = new LinkedHashMap<>();

    Reply put(String name, Object value) {
        fields.put(name, value);
        return this;
    }

    @Override
    public String toString() {
        return json(fields);
    }

    private static String json(Object value) {
        if (value instanceof Reply reply) {
            return json(reply.fields);
        }
        if (value instanceof Map<?, ?> map) {
            StringBuilder out = new StringBuilder("{");
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                if (out.length() > 1) {
                    out.append(',');
                }
                out.append(quoted(entry.getKey().toString())).append(':').append(json(entry.getValue()));
            }
            return out.append('}').toString();
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Reply::json).collect(Collectors.joining(",", "[", "]"));
        }
        if (value instanceof Number || value instanceof Boolean) {
            return value.toString();
        }
        return value == null ? "null" : quoted(value.toString());
    }

    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
