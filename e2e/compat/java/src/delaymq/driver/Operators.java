package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.MQClientManager;
import org.apache.rocketmq.common.admin.ConsumeStats;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.body.BrokerStatsData;
import org.apache.rocketmq.common.protocol.body.BrokerStatsItem;
import org.apache.rocketmq.common.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.common.protocol.body.ConsumeQueueData;
import org.apache.rocketmq.common.protocol.body.ConsumeStatsList;
import org.apache.rocketmq.common.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.common.protocol.body.QueryConsumeQueueResponseBody;
import org.apache.rocketmq.common.protocol.body.QueueTimeSpan;
import org.apache.rocketmq.common.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** DefaultMQAdminExt: further requests about groups, their members and statistics. */
final class Operators {
    private static final long TIMEOUT_MS = 15_000;

    private final Clients clients;

    Operators(Clients clients) {
        this.clients = clients;
    }

    private DefaultMQAdminExt admin(JSONObject request) {
        return clients.get(request, DefaultMQAdminExt.class);
    }

    /** Send requests for which the administration client has no method. */
    private MQClientAPIImpl calls(JSONObject request) {
        return MQClientManager.getInstance().getOrCreateMQClientInstance(admin(request)).getMQClientAPIImpl();
    }

    Object runningInfo(JSONObject request) throws Exception {
        ConsumerRunningInfo info = calls(request).getConsumerRunningInfo(
            request.getString("broker"), request.getString("group"), request.getString("member"),
            request.getBooleanValue("jstack"), TIMEOUT_MS);
        List<String> topics = new ArrayList<>();
        for (SubscriptionData subscription : info.getSubscriptionSet()) {
            topics.add(subscription.getTopic());
        }
        Map<String, Object> fields = new HashMap<>();
        fields.put("topics", topics);
        fields.put("properties", info.getProperties());
        fields.put("statusTopics", new ArrayList<>(info.getStatusTable().keySet()));
        fields.put("jstack", info.getJstack());
        List<Object> queues = new ArrayList<>();
        info.getMqTable().forEach((queue, state) -> queues.add(Map.of(
            "topic", queue.getTopic(), "queueId", queue.getQueueId(), "commitOffset", state.getCommitOffset())));
        fields.put("queues", queues);
        return fields;
    }

    /** Identify the message by offset message id, or by unique id if topic is given. */
    Object consumeDirectly(JSONObject request) throws Exception {
        String group = request.getString("group");
        String member = request.getString("member");
        String messageId = request.getString("messageId");
        ConsumeMessageDirectlyResult result;
        if (request.containsKey("topic")) {
            result = admin(request).consumeMessageDirectly(group, member, request.getString("topic"), messageId);
        } else {
            result = Versions.consumeMessageDirectly(
                calls(request), request.getString("broker"), group, member, messageId, TIMEOUT_MS);
        }
        return Map.of("result", result.getConsumeResult().name(), "order", result.isOrder());
    }

    /** Return client id → queue id → offset, of all members or of one. */
    Object status(JSONObject request) throws Exception {
        Map<String, Object> members = new HashMap<>();
        calls(request).invokeBrokerToGetConsumerStatus(
            request.getString("broker"), request.getString("topic"), request.getString("group"),
            request.getString("member"), TIMEOUT_MS
        ).forEach((member, offsets) -> members.put(member, byQueue(offsets)));
        return members;
    }

    Object reset(JSONObject request) throws Exception {
        return byQueue(admin(request).resetOffsetByTimestamp(
            request.getString("topic"), request.getString("group"), request.getLongValue("timestamp"),
            request.getBooleanValue("force"), request.getBooleanValue("cpp")));
    }

    Object cloneOffsets(JSONObject request) throws Exception {
        admin(request).cloneGroupOffset(
            request.getString("source"), request.getString("destination"), request.getString("topic"),
            request.getBooleanValue("offline"));
        return null;
    }

    Object corrections(JSONObject request) throws Exception {
        Map<Integer, Long> offsets = calls(request).queryCorrectionOffset(
            request.getString("broker"), request.getString("topic"), request.getString("group"),
            new HashSet<>(request.getJSONArray("leftOut").toJavaList(String.class)), TIMEOUT_MS);
        Map<String, Object> queues = new TreeMap<>();
        offsets.forEach((queueId, offset) -> queues.put(String.valueOf(queueId), offset));
        return queues;
    }

    Object statistics(JSONObject request) throws Exception {
        BrokerStatsData data = admin(request).viewBrokerStatsData(
            request.getString("broker"), request.getString("name"), request.getString("key"));
        return Map.of(
            "minute", figures(data.getStatsMinute()),
            "hour", figures(data.getStatsHour()),
            "day", figures(data.getStatsDay()));
    }

    Object consumeTps(JSONObject request) throws Exception {
        ConsumeStats stats =
            admin(request).examineConsumeStats(request.getString("group"), request.getString("topic"));
        return stats.getConsumeTps();
    }

    /** Return group → progress by topic, of all groups. */
    Object brokerProgress(JSONObject request) throws Exception {
        ConsumeStatsList list =
            admin(request).fetchConsumeStatsInBroker(request.getString("broker"), false, TIMEOUT_MS);
        Map<String, Object> groups = new HashMap<>();
        for (Map<String, List<ConsumeStats>> each : list.getConsumeStatsList()) {
            each.forEach((group, topics) -> {
                List<Object> progress = new ArrayList<>();
                for (ConsumeStats stats : topics) {
                    progress.add(Map.of("tps", stats.getConsumeTps(), "behind", stats.computeTotalDiff()));
                }
                groups.put(group, progress);
            });
        }
        return Map.of("groups", groups, "behind", list.getTotalDiff());
    }

    Object timeSpans(JSONObject request) throws Exception {
        Map<String, Object> queues = new TreeMap<>();
        for (QueueTimeSpan span :
            admin(request).queryConsumeTimeSpan(request.getString("topic"), request.getString("group"))) {
            queues.put(String.valueOf(span.getMessageQueue().getQueueId()), Map.of(
                "min", span.getMinTimeStamp(), "max", span.getMaxTimeStamp(),
                "consumed", span.getConsumeTimeStamp(), "delay", span.getDelayTime()));
        }
        return queues;
    }

    Object consumeQueue(JSONObject request) throws Exception {
        QueryConsumeQueueResponseBody body = calls(request).queryConsumeQueue(
            request.getString("broker"), request.getString("topic"), request.getIntValue("queueId"),
            request.getLongValue("index"), request.getIntValue("count"), request.getString("group"), TIMEOUT_MS);
        Map<String, Object> fields = new HashMap<>();
        if (body == null) {
            return fields;
        }
        List<Object> entries = new ArrayList<>();
        for (ConsumeQueueData entry : body.getQueueData()) {
            entries.add(Map.of(
                "offset", entry.getPhysicOffset(), "size", entry.getPhysicSize(), "tagsCode", entry.getTagsCode()));
        }
        fields.put("min", body.getMinQueueIndex());
        fields.put("max", body.getMaxQueueIndex());
        fields.put("entries", entries);
        fields.put("filterData", body.getFilterData());
        SubscriptionData subscription = body.getSubscriptionData();
        fields.put("expression", subscription == null ? null : subscription.getSubString());
        return fields;
    }

    private static Map<String, Object> figures(BrokerStatsItem item) {
        return Map.of("sum", item.getSum(), "tps", item.getTps(), "avgpt", item.getAvgpt());
    }

    private static Map<String, Object> byQueue(Map<MessageQueue, Long> offsets) {
        Map<String, Object> result = new TreeMap<>();
        offsets.forEach((queue, offset) -> result.put(String.valueOf(queue.getQueueId()), offset));
        return result;
    }
}
