package delaymq.driver;

import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;

/** RocketMQ's own decoder of traces. */
final class Traces {
    private Traces() {}

    /** Fields: body, of a message of the trace topic. Returns the traces decoded by RocketMQ's client. */
    static Object decode(JSONObject request) {
        String text = new String(Base64.getDecoder().decode(request.getString("body")), StandardCharsets.UTF_8);
        List<Object> found = new ArrayList<>();
        for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(text)) {
            TraceBean bean = context.getTraceBeans().get(0);
            Map<String, Object> fields = new HashMap<>();
            fields.put("type", context.getTraceType().name());
            fields.put("group", context.getGroupName());
            fields.put("region", context.getRegionId());
            fields.put("requestId", context.getRequestId());
            fields.put("costMs", context.getCostTime());
            fields.put("success", context.isSuccess());
            fields.put("contextCode", context.getContextCode());
            fields.put("topic", bean.getTopic());
            fields.put("msgId", bean.getMsgId());
            fields.put("offsetMsgId", bean.getOffsetMsgId());
            fields.put("tags", bean.getTags());
            fields.put("keys", bean.getKeys());
            fields.put("storeHost", bean.getStoreHost());
            fields.put("bodyLength", bean.getBodyLength());
            fields.put("retryTimes", bean.getRetryTimes());
            fields.put("msgType", bean.getMsgType() == null ? null : bean.getMsgType().name());
            fields.put("state", bean.getTransactionState() == null ? null : bean.getTransactionState().name());
            fields.put("transactionId", bean.getTransactionId());
            fields.put("fromCheck", bean.isFromTransactionCheck());
            found.add(fields);
        }
        return found;
    }
}
