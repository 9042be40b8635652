package delaymq.driver;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Conversion of messages, queues and results from and to JSON, complete for the tests. */
final class Messages {
    private Messages() {}

    static Message toSend(JSONObject fields) {
        byte[] body = fields.containsKey("bodySize")
            ? filler(fields.getIntValue("bodySize"))
            : Base64.getDecoder().decode(fields.getString("body"));
        Message message = new Message(fields.getString("topic"), body);
        if (fields.containsKey("tags")) {
            message.setTags(fields.getString("tags"));
        }
        if (fields.containsKey("keys")) {
            message.setKeys(fields.getString("keys"));
        }
        if (fields.containsKey("flag")) {
            message.setFlag(fields.getIntValue("flag"));
        }
        if (fields.containsKey("delayLevel")) {
            message.setDelayTimeLevel(fields.getIntValue("delayLevel"));
        }
        if (fields.containsKey("waitStoreOk")) {
            message.setWaitStoreMsgOK(fields.getBooleanValue("waitStoreOk"));
        }
        if (fields.containsKey("delayTimeSec")) {
            Versions.setDelayTimeSec(message, fields.getLongValue("delayTimeSec"));
        }
        if (fields.containsKey("delayTimeMs")) {
            Versions.setDelayTimeMs(message, fields.getLongValue("delayTimeMs"));
        }
        if (fields.containsKey("deliverTimeMs")) {
            Versions.setDeliverTimeMs(message, fields.getLongValue("deliverTimeMs"));
        }
        if (fields.containsKey("properties")) {
            fields.getJSONObject("properties").forEach((key, value) -> message.putUserProperty(key, (String) value));
        }
        if (fields.containsKey("reservedProperties")) {
            fields.getJSONObject("reservedProperties")
                .forEach((key, value) -> MessageAccessor.putProperty(message, key, (String) value));
        }
        return message;
    }

    static List<Message> toSend(JSONArray messages) {
        List<Message> result = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            result.add(toSend(messages.getJSONObject(i)));
        }
        return result;
    }

    /** Return a body that compression shortens, but not to nothing. */
    private static byte[] filler(int size) {
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = (byte) ('a' + i % 23);
        }
        return body;
    }

    static Map<String, Object> toJson(MessageExt message) {
        Map<String, Object> fields = new HashMap<>();
        fields.put("topic", message.getTopic());
        fields.put("tags", message.getTags());
        fields.put("keys", message.getKeys());
        fields.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        fields.put("msgId", message.getMsgId());
        fields.put("offsetMsgId",
            message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId());
        fields.put("brokerName", message.getBrokerName());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("commitLogOffset", message.getCommitLogOffset());
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("flag", message.getFlag());
        fields.put("sysFlag", message.getSysFlag());
        fields.put("storeSize", message.getStoreSize());
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("bornHost", String.valueOf(message.getBornHost()));
        fields.put("storeHost", String.valueOf(message.getStoreHost()));
        fields.put("properties", message.getProperties());
        return fields;
    }

    static List<Object> toJson(List<? extends MessageExt> messages) {
        List<Object> result = new ArrayList<>();
        if (messages != null) {
            messages.forEach(message -> result.add(toJson(message)));
        }
        return result;
    }

    static Map<String, Object> toJson(SendResult result) {
        Map<String, Object> fields = new HashMap<>();
        fields.put("status", result.getSendStatus().name());
        fields.put("msgId", result.getMsgId());
        fields.put("offsetMsgId", result.getOffsetMsgId());
        fields.put("queueOffset", result.getQueueOffset());
        fields.put("regionId", result.getRegionId());
        fields.put("traceOn", result.isTraceOn());
        fields.put("recallHandle", Versions.recallHandle(result));
        if (result.getMessageQueue() != null) {
            fields.put("queueId", result.getMessageQueue().getQueueId());
            fields.put("topic", result.getMessageQueue().getTopic());
            fields.put("brokerName", result.getMessageQueue().getBrokerName());
        }
        return fields;
    }

    static MessageQueue queue(JSONObject request) {
        String broker = request.containsKey("brokerName") ? request.getString("brokerName") : "broker-a";
        return new MessageQueue(request.getString("topic"), broker, request.getIntValue("queueId"));
    }

    static List<Object> toJsonQueues(Iterable<MessageQueue> queues) {
        List<Object> result = new ArrayList<>();
        for (MessageQueue queue : queues) {
            result.add(Map.of(
                "topic", queue.getTopic(), "brokerName", queue.getBrokerName(), "queueId", queue.getQueueId()));
        }
        return result;
    }
}
