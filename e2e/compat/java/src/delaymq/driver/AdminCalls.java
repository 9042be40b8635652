package delaymq.driver;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.parser.ParserConfig;
import com.alibaba.fastjson.util.TypeUtils;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Any method of RocketMQ's administration API by name, as dashboards and exporters call them. */
final class AdminCalls {
    private final Clients clients;

    AdminCalls(Clients clients) {
        this.clients = clients;
    }

    /**
     * Fields: client; method; arguments; api (call the API below DefaultMQAdminExt, which some tools use); types
     * (simple names of the parameters, to select an overload).
     */
    Object call(JSONObject request) throws Exception {
        DefaultMQAdminExt admin = clients.get(request, DefaultMQAdminExt.class);
        Object target = request.getBooleanValue("api") ? below(admin) : admin;
        Method method = method(target, request);
        JSONArray arguments = request.getJSONArray("arguments");
        Object[] values = new Object[arguments.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = argument(arguments.get(i), method.getParameters()[i].getParameterizedType());
        }
        try {
            return plain(method.invoke(target, values));
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof Exception) {
                throw (Exception) e.getCause();
            }
            throw e;
        }
    }

    private static Object below(DefaultMQAdminExt admin) throws ReflectiveOperationException {
        Object implementation = field(admin, "defaultMQAdminExtImpl");
        return ((MQClientInstance) field(implementation, "mqClientInstance")).getMQClientAPIImpl();
    }

    private static Object field(Object owner, String name) throws ReflectiveOperationException {
        Field field = owner.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }

    private static Method method(Object target, JSONObject request) {
        String name = request.getString("method");
        int count = request.getJSONArray("arguments").size();
        JSONArray types = request.getJSONArray("types");
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(name) && method.getParameterCount() == count && fits(method, types)) {
                return method;
            }
        }
        throw new IllegalArgumentException("no method " + name + " with " + count + " arguments " + types);
    }

    private static boolean fits(Method method, JSONArray types) {
        return types == null
            || Arrays.stream(method.getParameterTypes()).map(Class::getSimpleName).toList().equals(types);
    }

    private static Object argument(Object value, java.lang.reflect.Type type) {
        if (type == Properties.class) {
            Properties properties = new Properties();
            ((JSONObject) value).forEach((key, text) -> properties.setProperty(key, String.valueOf(text)));
            return properties;
        }
        return value == null ? null : TypeUtils.cast(value, type, ParserConfig.getGlobalInstance());
    }

    /** Convert to JSON types; a map whose keys are objects becomes a list of pairs. */
    static Object plain(Object value) throws ReflectiveOperationException {
        if (value == null || value instanceof Number || value instanceof Boolean || value instanceof String) {
            return value;
        }
        if (value instanceof MessageExt) {
            return Messages.toJson((MessageExt) value);
        }
        if (value instanceof Map) {
            return plainMap((Map<?, ?>) value);
        }
        if (value instanceof Iterable) {
            List<Object> items = new ArrayList<>();
            for (Object item : (Iterable<?>) value) {
                items.add(plain(item));
            }
            return items;
        }
        return value.getClass().getName().startsWith("org.apache.rocketmq") && !(value instanceof Enum)
            ? plainBean(value)
            : String.valueOf(value);
    }

    private static Object plainMap(Map<?, ?> map) throws ReflectiveOperationException {
        Map<String, Object> named = new TreeMap<>();
        List<Object> pairs = new ArrayList<>();
        for (Map.Entry<?, ?> entry : map.entrySet()) {
            Object key = plain(entry.getKey());
            if (key instanceof Map || key instanceof List) {
                pairs.add(List.of(key, plain(entry.getValue())));
            } else {
                named.put(String.valueOf(key), plain(entry.getValue()));
            }
        }
        return pairs.isEmpty() ? named : pairs;
    }

    private static Object plainBean(Object bean) throws ReflectiveOperationException {
        Map<String, Object> fields = new TreeMap<>();
        for (Class<?> type = bean.getClass(); type != Object.class; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers()) && !Modifier.isTransient(field.getModifiers())
                    && field.getType() != Random.class) {
                    field.setAccessible(true);
                    fields.put(field.getName(), plain(field.get(bean)));
                }
            }
        }
        return fields;
    }
}
