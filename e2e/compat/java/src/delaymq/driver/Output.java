package delaymq.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/** Output lines: responses and events, each written as a whole. */
final class Output {
    private final PrintStream lines;

    Output(PrintStream lines) {
        this.lines = lines;
    }

    void result(long id, Object result) {
        Map<String, Object> line = new HashMap<>();
        line.put("id", id);
        line.put("result", result);
        write(line);
    }

    /** Write an error: the first response code in the chain of exceptions, and the outermost text. */
    void error(long id, Throwable error) {
        Map<String, Object> description = new HashMap<>();
        description.put("type", error.getClass().getSimpleName());
        description.put("message", String.valueOf(error.getMessage()));
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                description.put("code", ((MQBrokerException) cause).getResponseCode());
                description.put("remark", ((MQBrokerException) cause).getErrorMessage());
                break;
            }
            if (cause instanceof MQClientException && !description.containsKey("code")) {
                description.put("code", ((MQClientException) cause).getResponseCode());
                description.put("remark", ((MQClientException) cause).getErrorMessage());
            }
        }
        Map<String, Object> line = new HashMap<>();
        line.put("id", id);
        line.put("error", description);
        write(line);
    }

    void event(String name, Map<String, Object> fields) {
        Map<String, Object> line = new HashMap<>(fields);
        line.put("event", name);
        write(line);
    }

    private void write(Map<String, Object> line) {
        String text = JSON.toJSONString(
            line, SerializerFeature.WriteMapNullValue, SerializerFeature.DisableCircularReferenceDetect);
        byte[] bytes = (text + "\n").getBytes(StandardCharsets.UTF_8);
        synchronized (lines) {
            lines.write(bytes, 0, bytes.length);
            lines.flush();
        }
    }
}
